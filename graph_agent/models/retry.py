"""Trying a model request again: transient errors only, and never after its first token."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from graph_agent.models.errors import classify_model_error, retry_after_s
from graph_agent.models.metering import note_cut_off
from graph_agent.models.spoken import Spoken

LONGEST_WAIT_S = 60.0
QUIET: RunnableConfig = {"tags": ["nostream"]}


async def ask(
    runnable: Runnable[LanguageModelInput, AIMessage],
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    *,
    retries: int,
    timeout_s: float | None,
    config: RunnableConfig | None = QUIET,
    watch: Spoken | None = None,
) -> AIMessage:
    """Send one request, again after a transient error, with growing and jittered waits between.

    Args:
        runnable: The model.
        request: The messages.
        options: Keyword arguments of the call, e.g. `tools`.
        retries: Further attempts after the first.
        timeout_s: Seconds each attempt may take; None for no limit. Running out counts as transient.
        config: The call's config. `QUIET` keeps its tokens out of the run's message stream; None lets them in, and then
            nothing is tried again after the first token.
        watch: Where the caller reads afterwards whether a token has reached the reader; None when nobody asks.

    Raises:
        Exception: What the provider raised, when it was not transient or the attempts ran out.
    """
    watch = watch or Spoken()
    attempt = 0
    while True:
        # An explicit list of callbacks would replace those of the run; merging keeps both.
        heard = config if config is not None else watch.watched(merge_configs(ensure_config(), {"callbacks": [watch]}))
        try:
            async with asyncio.timeout(timeout_s):
                return await runnable.ainvoke(list(request), heard, **options)
        except asyncio.CancelledError:
            note_cut_off(runnable, request, options, watch.received, watch.reported)
            raise
        except Exception as error:
            if watch.seen or not await pause_before_retry(error, attempt, retries):
                raise
        attempt += 1


async def pause_before_retry(error: Exception, attempt: int, retries: int) -> bool:
    """Wait as long as is due before another attempt; False at once when there is to be none.

    Args:
        error: What the attempt ended in; only a transient one is worth another.
        attempt: The attempt that failed, from 0.
        retries: Attempts allowed after the first.
    """
    if attempt >= retries or classify_model_error(error) != "transient":
        return False
    await asyncio.sleep(wait_s(attempt, retry_after_s(error)))
    return True


def wait_s(attempt: int, asked_s: float | None) -> float:
    """Seconds to wait before the attempt after `attempt` (from 0).

    What the provider asked for counts, up to `LONGEST_WAIT_S`; else half to all of 0.5, 1, 2, … seconds.
    """
    if asked_s is not None:
        return min(asked_s, LONGEST_WAIT_S)
    longest: float = min(0.5 * 2**attempt, LONGEST_WAIT_S)
    return longest * random.uniform(0.5, 1)
