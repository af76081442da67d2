"""Requests the answer of an agent with a `response_format`, validates it, and has it repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from graph_agent.base.errors import SlowSchemaError
from graph_agent.base.finish import cause_of, cut_off
from graph_agent.base.history.events import event
from graph_agent.base.settings.response_format import ResponseSchema, is_json
from graph_agent.core.planning.answer_request import ask_for_answer
from graph_agent.core.planning.exchange import Exchange
from graph_agent.models.stream_filters import is_blank

EMPTY_ANSWER = "Your answer was empty. No tool can be called any more: answer from what you know."
"""The message sent to a model after an empty answer."""
REPAIRS = 2
"""Maximum number of repairs of an invalid answer."""


def replaced_answer_warning(fault: str) -> str:
    """Return the warning that a streamed answer will be replaced; `fault` is the reason, as a sentence."""
    return f"The answer did not fit the response format, and another takes its place. {fault}"


@dataclass(frozen=True, slots=True)
class StructuredAnswer:
    """The newest reply to a request for a structured answer, with its parsed value or the error."""

    message: AIMessage
    """The newest reply."""
    value: Any = None
    """The parsed value as plain JSON; None if the reply does not fit the schema."""
    error: tuple[str, str] | None = None
    """`(kind, message)` of the `error` event for an answer that stays invalid; None for a valid or an empty answer."""


async def ask_for_structure(
    exchange: Exchange,
    response: ResponseSchema,
    *,
    quiet: bool,
    was_empty: bool,
    is_exhausted: Callable[[], bool],
    max_tokens: int | None = None,
) -> StructuredAnswer | None:
    """Ask for an answer that fits a schema, and return it with its parsed value. An invalid one is sent back to the
    model up to `REPAIRS` times with its error.

    The first reply is streamed if the provider enforces the schema; repairs are not. A cut-off reply counts as invalid
    unless it is complete JSON. There is no repair if the agent's `handle_errors` gives no message, or if the schema's
    check is too slow. After an empty reply, which counts as an attempt, further requests offer no tools.

    Args:
        exchange: Sends the requests. It gets a `warning` event if a repair replaces a streamed reply.
        response: The schema.
        quiet: Whether to keep the first reply out of the message stream, too.
        was_empty: Whether an earlier reply was empty; a second empty reply is returned.
        is_exhausted: Returns whether a budget is too small for a repair.
        max_tokens: Maximum tokens of one reply; None for the provider's default.

    Returns:
        The newest reply with its value or error, or a second empty one with neither; None if a budget forbids a
            necessary repair.

    Raises:
        RefusedError: The model or its provider refused; the error's message is the answer.
        ConfigError: The `handle_errors` function failed.
        Exception: The error of the last provider.
    """
    tail, fault, reply = list[AnyMessage](), "", AIMessage("")
    for attempt in range(1 + REPAIRS):
        if attempt and is_exhausted():
            return None
        reply = await ask_for_answer(
            exchange,
            exchange.request,
            tail,
            quiet=quiet or attempt > 0,
            schema=response.json_schema,
            without_tools=was_empty,
        )
        if is_blank(reply.text):
            if was_empty:
                return StructuredAnswer(reply)
            was_empty, fault = True, "The answer was empty."
            tail.append(HumanMessage(EMPTY_ANSWER))
            continue
        try:
            if (cut := cut_off(reply)) is not None and not is_json(reply.text):
                # A repair could make it valid while the missing part stays lost.
                raise ValueError(f"The reply was cut off {cause_of(cut, reply, max_tokens)}.")
            return StructuredAnswer(reply, await asyncio.to_thread(response.read, reply.text))
        # A repair cannot make the schema itself faster.
        except SlowSchemaError as error:
            return StructuredAnswer(reply, error=("response_schema", str(error)))
        except ValueError as error:
            fault = str(error)
            if (correction := response.correction(error, reply)) is None:
                return _misfit(reply, f": {fault}")
        if exchange.stream.is_committed and attempt < REPAIRS:
            exchange.events.append(
                event("warning", exchange.request.loop["step"], message=replaced_answer_warning(fault))
            )
        tail += [reply, HumanMessage(correction)]
    return _misfit(reply, f" after {REPAIRS} repairs: {fault}")


def _misfit(reply: AIMessage, how: str) -> StructuredAnswer:
    """Return the result for a reply that stays invalid.

    Args:
        how: End of the sentence of the error, after "The answer did not fit the response format".
    """
    return StructuredAnswer(reply, error=("response_format", f"The answer did not fit the response format{how}"))
