"""Decides whether a failed model request is worth another attempt at the same model, and after how long."""

from __future__ import annotations

import time
from contextvars import ContextVar

from graph_agent.models.errors import LONGEST_WAIT_S, classify_model_error, forbids_retry, is_loading, retry_after_s

PATIENCE_S = 10.0
"""Longest delay in seconds that is waited for at a provider's request while a fallback model could answer."""
_LOADING_WAITS_S = (1.0, 2.0, 4.0, *(8.0,) * 14)
"""Seconds to wait after each attempt at a server that is loading its model: two minutes in total."""


_limits: ContextVar[tuple[bool, float | None]] = ContextVar("graph_agent_wait_limits", default=(False, None))
"""Whether a fallback model can answer the current request, and when its input ends."""


def limit_waits(*, fallback: bool, ends: float | None) -> None:
    """Set what limits the waits of the current task's later requests; `may_retry` reads it.

    Args:
        fallback: Whether another model will be asked if this one fails.
        ends: The input's deadline, in seconds of `time.monotonic()`; None without a deadline.
    """
    if _limits.get() != (fallback, ends):
        _limits.set((fallback, ends))


def requested_wait_s(error: BaseException, attempt: int) -> float | None:
    """Return the seconds to wait before the next attempt that the provider requests, or that a loading server needs.

    None if the error requires no particular wait.

    Args:
        error: The error of the failed attempt.
        attempt: Number of that attempt, from 0.
    """
    if is_loading(error):
        return _LOADING_WAITS_S[min(attempt, len(_LOADING_WAITS_S) - 1)]
    return retry_after_s(error)


def may_retry(error: BaseException, attempt: int, retries: int) -> bool:
    """Whether to send a failed request to the same model again.

    Only transient errors are retried, at most `retries` times. While a server loads its model and there is no fallback,
    the request is repeated for two minutes instead. There is no retry if the provider forbids it. Nor is there one if
    the delay that the provider requests, or that a loading server needs, ends after the deadline, is longer than all
    remaining waits together, or is longer than `PATIENCE_S` and there is a fallback model.

    Args:
        error: The error of the failed attempt.
        attempt: Number of that attempt, from 0.
        retries: Maximum attempts after the first; 0 switches every retry off.
    """
    if retries == 0 or classify_model_error(error) != "transient" or forbids_retry(error):
        return False
    fallback, ends = _limits.get()
    # A fallback answers sooner than a server that is still loading.
    loading = is_loading(error) and not fallback
    if attempt >= (len(_LOADING_WAITS_S) if loading else retries):
        return False
    wait_s = requested_wait_s(error, attempt)
    if wait_s is None:
        return True
    if ends is not None and time.monotonic() + wait_s > ends:
        return False
    return wait_s <= (PATIENCE_S if fallback else LONGEST_WAIT_S * (retries - attempt)) or loading
