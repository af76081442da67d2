"""Gates at which a test holds a model or a tool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from pydantic import Field

from graph_agent import ScriptedChatModel
from graph_agent.core.state.registry import _under_way


class Gate:
    """A gate that blocks coroutines and threads; usable from any loop and any thread."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()
        self.cancelled = False
        """Whether a waiting coroutine was cancelled."""

    async def passing(self) -> None:
        """Wait until it is open."""
        self._reached.set()
        try:
            while not self._open.is_set():
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def passing_blocking(self) -> None:
        """Behaves like `passing`, in a thread."""
        self._reached.set()
        assert self._open.wait(120)

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        """Wait until a coroutine or thread waits at it."""
        await until(self._reached.is_set)


class LateGate(Gate):
    """A gate that calls `late` whenever a coroutine stops waiting at it, also by cancellation."""

    def __init__(self, late: Callable[[], object]) -> None:
        super().__init__()
        self._late = late

    async def passing(self) -> None:
        try:
            await super().passing()
        finally:
            self._late()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a state, two minutes at most."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.002)


class GatedModel(ScriptedChatModel):
    """A scripted model that waits at a gate before some of its replies, or within one."""

    before: dict[int, Gate] = Field(default={}, exclude=True)
    """Number of a request, from 1 → the gate before its reply."""
    within: dict[int, Gate] = Field(default={}, exclude=True)
    """Number of a request, from 1 → the gate after the first chunk of its streamed reply."""

    def __init__(self, responses: Sequence[str | AIMessage], **kwargs: Any) -> None:
        super().__init__(responses, **kwargs)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await self._pass(self.before)
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await self._pass(self.before)
        first = True
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk
            if first and (gate := self.within.get(len(self.requests))):
                await gate.passing()
            first = False

    async def _pass(self, gates: dict[int, Gate]) -> None:
        if gate := gates.get(len(self.requests) + 1):
            await gate.passing()


def gated_tool(gate: Gate, name: str = "work", **marks: Any) -> BaseTool:
    """A tool that waits at a gate, and then returns."""

    async def work() -> str:
        """Work."""
        await gate.passing()
        return "worked"

    made: BaseTool = tool(name)(work)
    return made.model_copy(update={"metadata": marks})


def nothing_under_way() -> bool:
    """Whether no session has a run in this process."""
    return not _under_way


class HeldModel(ScriptedChatModel):
    """A scripted model that replies once the event `go` is set."""

    go: Any = None

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await self.go.wait()
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await self.go.wait()
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk
