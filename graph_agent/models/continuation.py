"""Asks until a reply is whole: goes on with a paused turn, and asks again after a call that the provider discarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from graph_agent.base.finish import has_discarded_call, is_paused
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.usage import record_replies
from graph_agent.models.retry import QUIET, ask
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.wire.answer_decoder import AnswerDecoder

MOST_PAUSES = 8
"""Maximum requests that continue one paused turn; a turn that is then paused again counts as cut off."""
_DISCARDED_RETRIES = 2
"""Maximum requests repeated after a discarded call; a lower `model_retries` also limits them."""


async def ask_until_whole(
    runnable: Runnable[LanguageModelInput, AIMessage],
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    settings: LoopConfig,
    *,
    config: RunnableConfig | None,
    watch: StreamWatch | None,
    decoder: AnswerDecoder | None = None,
    joins_pauses: bool = True,
) -> AIMessage:
    """Send a request as `retry.ask` does, and send further ones until the reply is whole.

    A reply from which the provider discarded a malformed call is requested again, at most twice and `model_retries`
    times, and not after text has reached the reader or the provider has run a tool. A turn that the provider paused is
    continued by sending its reply back, at most 8 times, unless it calls one of the agent's tools. The parts become one
    message; only the first part is streamed.

    Args:
        runnable: The model.
        request: The messages, in the form that the model accepts.
        options: Keyword arguments of each call.
        settings: The retries and time limits of each request.
        config: Config of the first request; see `retry.ask`.
        watch: Records the text that has reached the reader.
        decoder: Rewrites the text of each chunk of the first reply; None to leave it unchanged.
        joins_pauses: Whether to continue a paused turn; otherwise its first part is returned.

    Raises:
        Exception: The provider's error, as from `retry.ask`.
    """
    reply = await ask(runnable, request, options, settings, config=config, watch=watch, decoder=decoder)
    for _ in range(min(_DISCARDED_RETRIES, settings.model_retries)):
        if not has_discarded_call(reply) or (watch is not None and watch.is_committed):
            break
        # It is not returned, so its usage would otherwise be lost.
        record_replies([reply])
        reply = await ask(runnable, request, options, settings, config=config, watch=watch, decoder=decoder)
    for _ in range(MOST_PAUSES if joins_pauses else 0):
        # A call of the agent's own tools needs its result before the turn can go on.
        if not is_paused(reply) or reply.tool_calls or reply.invalid_tool_calls:
            break
        record_replies([reply])
        newest = StreamWatch()  # of its own, because the text of the first part does not forbid repeating this request
        if watch is not None:
            watch.continuation = newest
        continued = await ask(runnable, [*request, reply], options, settings, config=QUIET, watch=newest)
        reply = joined_turn(reply, continued)
    return reply


def with_earlier_blocks(earlier: AIMessage, last: AIMessage) -> AIMessage:
    """Prepend the content blocks of the earlier part of a paused turn, except for its text, to the last part.

    Returns `last` itself if the earlier part has only text.
    """
    kept = [block for block in _blocks(earlier.content) if isinstance(block, dict) and block.get("type") != "text"]
    return last.model_copy(update={"content": [*kept, *_blocks(last.content)]}) if kept else last


def joined_turn(first: AIMessage, second: AIMessage) -> AIMessage:
    """Return two parts of one turn as one message: both contents, the id of the first, all else from the second."""
    if isinstance(first.content, str) and isinstance(second.content, str):
        content: Any = first.content + second.content
    else:
        content = [*_blocks(first.content), *_blocks(second.content)]
    # The reader has received the first part under its id.
    return second.model_copy(update={"content": content, "id": first.id})


def _blocks(content: str | list[Any]) -> list[Any]:
    """Return a message's content as a list of content blocks; empty for an empty text."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []
