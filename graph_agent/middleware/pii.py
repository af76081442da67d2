"""`PIIMiddleware` around one request: what leaves for the model, and what comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, cast

from langchain.agents.middleware import PIIMiddleware
from langchain.agents.middleware.types import AgentState, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage


def around_request(middleware: PIIMiddleware[Any, Any]) -> Callable[[Any, Any], Awaitable[Any]]:
    """Its checks as a `wrap_model_call`.

    It rewrites the state of its own loop before each model call, and so looks at what is new alone. Here the history
    stays as the user wrote it, so every message of every request is looked at.
    """

    async def wrap(
        request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        messages: list[AnyMessage] = []
        for stretch in _stretches(request.messages):
            messages += _after(await middleware.abefore_model(_state(stretch), request.runtime), stretch)
        response = await handler(request.override(messages=messages))
        replies = [
            _after(await middleware.aafter_model(_state([cast("AnyMessage", reply)]), request.runtime), [reply])[0]
            for reply in response.result
        ]
        return ModelResponse(result=list(replies), structured_response=response.structured_response)

    return wrap


def _stretches(messages: Sequence[AnyMessage]) -> Iterator[list[AnyMessage]]:
    """The messages in pieces, each as it was new once: the results of a reply, and one message of the user's."""
    stretch: list[AnyMessage] = []
    for message in messages:
        if isinstance(message, AIMessage) and stretch:
            yield stretch
            stretch = []
        stretch.append(message)
        if isinstance(message, HumanMessage):
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _state(messages: list[AnyMessage]) -> AgentState[Any]:
    return {"messages": messages}


def _after(update: dict[str, Any] | None, messages: list[Any]) -> list[Any]:
    return messages if update is None else update["messages"]
