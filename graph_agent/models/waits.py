"""Decides whether a failed model request is worth another attempt at the same model, and after how long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from graph_agent.models.errors import LONGEST_WAIT_S, classify_model_error, forbids_retry, is_loading, retry_after_s

PATIENCE_S = 10.0
"""Longest delay that a provider may request before a fallback model is asked instead, in seconds."""
_LOADING_WAITS_S = (1.0, 2.0, 4.0, *(8.0,) * 14)
"""Waits for a server that loads its model, in seconds: two minutes in total."""


class _Alternative(NamedTuple):
    """What a request has in place of a long wait; the fields are the arguments of `alternative`."""

    fallback: bool
    ends: float | None


_NONE = _Alternative(fallback=False, ends=None)
_alternative: ContextVar[_Alternative] = ContextVar("graph_agent_alternative", default=_NONE)


@contextmanager
def alternative(*, fallback: bool, ends: float | None) -> Iterator[None]:
    """Declare for the requests inside the block what they have in place of a long wait.

    Args:
        fallback: Whether another model can be asked if this one fails.
        ends: The time of the input's deadline, as of `time.monotonic`; None without one.
    """
    token = _alternative.set(_Alternative(fallback, ends))
    try:
        yield
    finally:
        _alternative.reset(token)


def requested_wait_s(error: BaseException, attempt: int) -> float | None:
    """Return the seconds to wait that an error asks for after attempt number `attempt`, from 0; None for any."""
    if is_loading(error):
        return _LOADING_WAITS_S[min(attempt, len(_LOADING_WAITS_S) - 1)]
    return retry_after_s(error)


def may_retry(error: BaseException, attempt: int, retries: int) -> bool:
    """Whether to send a failed request again to the same model.

    A transient error is retried `retries` times, while a model loads for two minutes. A delay that the provider
    requests is not waited for if it ends after the deadline, if it is longer than all waits together, or if it is
    longer than `PATIENCE_S` and a fallback model can answer meanwhile.

    Args:
        attempt: Number of the failed attempt, from 0.
        retries: Maximum attempts after the first.
    """
    if retries == 0 or classify_model_error(error) != "transient" or forbids_retry(error):
        return False
    fallback, ends = _alternative.get()
    loading = is_loading(error) and not fallback
    if attempt >= (len(_LOADING_WAITS_S) if loading else retries):
        return False
    wait_s = requested_wait_s(error, attempt)
    if wait_s is None:
        return True
    if ends is not None and time.monotonic() + wait_s > ends:
        return False
    return wait_s <= (PATIENCE_S if fallback else LONGEST_WAIT_S * (retries - attempt)) or loading
