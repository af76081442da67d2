"""The answer to an agent with a `response_format`: asked for, checked, and sent back where it does not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from graph_agent.asking import Asking
from graph_agent.errors import SlowSchemaError
from graph_agent.events import event
from graph_agent.schema import ResponseSchema

REPAIRS = 2
"""Times an answer that does not fit its schema is sent back."""


@dataclass(frozen=True, slots=True)
class StructuredAnswer:
    """The newest reply, and what it holds."""

    message: AIMessage
    value: Any = None
    """Plain JSON; None where the reply does not fit."""
    error: tuple[str, str] | None = None
    """Kind and message of the `error` event; None for an answer that fits."""


async def ask_for_structure(
    asking: Asking, response: ResponseSchema, *, quiet: bool, is_exhausted: Callable[[], bool]
) -> StructuredAnswer | None:
    """Ask for an answer that fits a schema.

    The first reply is streamed where the provider holds the model to the schema (see `Asking.answer`), repairs are not.

    Args:
        asking: The node's requests.
        response: The shape of the answer.
        quiet: Keep the first reply out of the message stream too.
        is_exhausted: Whether a budget has no room for a repair.

    Returns:
        The answer; None where a budget forbids the repair that it needs.

    Raises:
        RefusedError, Exception: As for `Asking.answer`.
    """
    tail: list[AnyMessage] = []
    for attempt in range(1 + REPAIRS):
        reply = await asking.answer(tail, quiet=quiet or attempt > 0, schema=response.json_schema)
        try:
            return StructuredAnswer(reply, await asyncio.to_thread(response.read, reply.text))
        except SlowSchemaError as error:
            return StructuredAnswer(reply, error=("response_schema", str(error)))
        except ValueError as error:
            fault = str(error)
        if attempt == REPAIRS:
            break
        if is_exhausted():
            return None
        if asking.spoken.seen:
            message = f"The answer did not fit the response format, and another takes its place. {fault}"
            asking.events.append(event("warning", asking.loop["step"], message=message))
        tail += [reply, HumanMessage(f"That does not fit: {fault} Send the corrected object.")]
    message = f"The answer did not fit the response format after {REPAIRS} repairs: {fault}"
    return StructuredAnswer(reply, error=("response_format", message))
