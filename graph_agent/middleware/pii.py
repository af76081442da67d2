"""`PIIMiddleware` applied to the messages and the reply of one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, cast

from langchain.agents.middleware import PIIMiddleware
from langchain.agents.middleware.types import AgentState, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage


def wrap_with_pii(middleware: PIIMiddleware[Any, Any]) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return the middleware's checks as a `wrap_model_call`.

    In its own loop the middleware rewrites the state and therefore checks only new messages. Here the history is not
    changed, so every message of every request is checked.
    """

    async def wrap(
        request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        messages: list[AnyMessage] = []
        for group in _groups(request.messages):
            messages += _updated(await middleware.abefore_model(_state(group), request.runtime), group)
        response = await handler(request.override(messages=messages))
        replies = [
            _updated(await middleware.aafter_model(_state([cast("AnyMessage", reply)]), request.runtime), [reply])[0]
            for reply in response.result
        ]
        return ModelResponse(result=list(replies), structured_response=response.structured_response)

    return wrap


def _groups(messages: Sequence[AnyMessage]) -> Iterator[list[AnyMessage]]:
    """Split messages into groups that were new together: a reply with its results, up to one user message."""
    group: list[AnyMessage] = []
    for message in messages:
        if isinstance(message, AIMessage) and group:
            yield group
            group = []
        group.append(message)
        if isinstance(message, HumanMessage):
            yield group
            group = []
    if group:
        yield group


def _state(messages: list[AnyMessage]) -> AgentState[Any]:
    return {"messages": messages}


def _updated(update: dict[str, Any] | None, messages: list[Any]) -> list[Any]:
    return messages if update is None else update["messages"]
