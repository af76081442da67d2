"""Trying a model request again: transient errors only, and never after its first token."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from graph_agent.models.errors import classify_model_error, retry_after_s
from graph_agent.models.finish_reasons import mark_incomplete
from graph_agent.models.metering import record_cut_off
from graph_agent.models.stream_watch import Spoken
from graph_agent.models.token_timeout import TokenTimeout

LONGEST_WAIT_S = 60.0
QUIET: RunnableConfig = {"tags": ["nostream"]}


async def ask(
    runnable: Runnable[LanguageModelInput, AIMessage],
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    *,
    retries: int,
    timeout_s: float | None,
    total_s: float | None = None,
    config: RunnableConfig | None = QUIET,
    watch: Spoken | None = None,
) -> AIMessage:
    """Send one request, again after a transient error, with growing and jittered waits between.

    Args:
        runnable: The model.
        request: The messages.
        options: Keyword arguments of the call, e.g. `tools`.
        retries: Further attempts after the first.
        timeout_s: Seconds to the first token of each attempt, and between its tokens; where the reply is not streamed,
            seconds to its end. None for no limit. Running out counts as transient.
        total_s: Seconds each attempt may take in all; None for no limit. Running out counts as transient.
        config: The call's config. `QUIET` keeps its tokens out of the run's message stream; None lets them in, and then
            nothing is tried again after the first token.
        watch: Where the caller reads afterwards whether a token has reached the reader; None when nobody asks.

    Raises:
        Exception: What the provider raised, when it was not transient or the attempts ran out.
    """
    watch = watch or Spoken()
    watch.limit = limit = _Attempt(timeout_s, total_s)
    attempt = 0
    while True:
        # The limit comes first: it does not count the time that the watch takes.
        sent_with = _with_callbacks(config, [limit] if config is not None else [limit, watch])
        if config is None:
            sent_with = watch.gated(sent_with)
        try:
            async with limit.bounded():
                reply = await runnable.ainvoke(list(request), sent_with, **options)
            return mark_incomplete(reply, limit.arguments.values())
        except asyncio.CancelledError:
            record_cut_off(runnable, request, options, watch.received, watch.reported)
            raise
        except Exception as error:
            if watch.seen or not await pause_before_retry(error, attempt, retries):
                raise
        attempt += 1


class _Attempt(TokenTimeout):
    """The time limit of one attempt, and the arguments of its calls as they are streamed."""

    def __init__(self, token_s: float | None, total_s: float | None) -> None:
        super().__init__(token_s, total_s)
        self.arguments: dict[Any, str] = {}

    def begin(self) -> None:
        super().begin()
        self.arguments = {}

    async def on_llm_new_token(
        self, *_: Any, chunk: GenerationChunk | ChatGenerationChunk | None = None, **__: Any
    ) -> None:
        self.restart()
        message = chunk.message if isinstance(chunk, ChatGenerationChunk) else None
        for piece in message.tool_call_chunks if isinstance(message, AIMessageChunk) else ():
            # A call without an index comes in one piece.
            key = f"#{len(self.arguments)}" if piece["index"] is None else piece["index"]
            self.arguments[key] = self.arguments.get(key, "") + (piece["args"] or "")


def _with_callbacks(config: RunnableConfig | None, added: list[BaseCallbackHandler]) -> RunnableConfig:
    """A call's config with further callbacks; those of the run stay, unless the config names its own."""
    own = (config or {}).get("callbacks")
    if isinstance(own, list):
        return {**(config or {}), "callbacks": [*own, *added]}
    # An explicit list of callbacks would replace those of the run; merging keeps both.
    return merge_configs(ensure_config(), config, {"callbacks": added})


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
