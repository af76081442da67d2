"""Counting the model calls that a request took beside the one it came to."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from langchain_core.messages import AIMessage

from graph_agent.budgets import usage_of
from graph_agent.config import LoopConfig
from graph_agent.models.metering import metered
from graph_agent.state.usage import add_usage
from graph_agent.types import NO_USAGE, Usage


class Counts(Protocol):
    """What sends requests and counts what they took."""

    _settings: LoopConfig
    usage: Usage
    cut_off: AIMessage | None


P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Counts)


def counts_beside(
    send: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Make a method that sends requests count, however it ends, the calls that nobody else does."""

    @functools.wraps(send)
    async def counted(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with metered() as beside:
            try:
                return await send(self, *args, **kwargs)
            finally:
                self.cut_off = beside.cut_off
                for reply in beside.replies:
                    self.usage = add_usage(self.usage, usage_of(reply, self._settings.prices))
                self.usage = add_usage(self.usage, {**NO_USAGE, "model_calls": -beside.uncalled})

    return counted
