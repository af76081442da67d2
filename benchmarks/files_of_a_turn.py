"""Counts the files, functions and hops of one plain turn: `python -m benchmarks.files_of_a_turn [--list]`.

A turn is one input with one native tool call and an answer, after a first one that has warmed caches. It is measured
through `graph.ainvoke`, through a POST to chat completions and through one to Responses. Above a ceiling the program
fails; lower a ceiling when the number falls.

A function is counted once, a lambda too, a comprehension not. A hop is one call of a function from another file: the
caller is the nearest function of the package on the stack, so that a call through LangGraph counts. A coroutine counts
once, however often it is resumed. `--list` prints the calls of each file, those from other files first.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import httpx
from langchain_core.tools import tool

import graph_agent
from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.interfaces.server.app import create_app
from graph_agent.interfaces.server.settings import ServerSettings
from graph_agent.server import AgentSource

PACKAGE = Path(graph_agent.__file__).parent
NODES = PACKAGE.parent / "nodes"


class Counts(NamedTuple):
    """Figures of one turn."""

    files: int
    functions: int
    hops: int


CEILINGS = {
    "graph.ainvoke": Counts(59, 345, 388),
    "POST /v1/chat/completions": Counts(81, 496, 508),
    "POST /v1/responses": Counts(103, 664, 899),
}
"""Figures at most, by way into the agent; those of requests vary a little, with the moment at which something is stored
or the run of a chat has ended."""


@tool
def look_up(text: str) -> str:
    """Look a text up."""
    return text


look_up.metadata = {"effect": "read"}


def agent() -> CompiledAgentGraph:
    """Return an agent that calls its tool once for each input."""
    call = '{"tool_calls": [{"id": "c", "name": "look_up", "arguments": {"text": "a"}}]}'
    return create_graph_agent(ScriptedChatModel([call, "Found a."], cycle=True), tools=[look_up])


class Turn:
    """Records the calls of the package's functions, while it is the profile function of all threads."""

    def __init__(self) -> None:
        self._frames: set[FrameType] = set()
        """All frames so far: held, so that no later frame has the identity of an earlier one."""
        self._paths: dict[str, str | None] = {}
        self.functions: set[CodeType] = set()
        self.calls: Counter[str] = Counter()
        """Path of a file → calls of its functions."""
        self.hops: Counter[str] = Counter()
        """Path of a file → calls of its functions from other files."""

    @property
    def counts(self) -> Counts:
        """The figures so far."""
        return Counts(len(self.calls), len(self.functions), self.hops.total())

    def record(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a frame at its first start; a profile function."""
        path = self._path_of(frame) if event == "call" else None
        # A coroutine and a generator start again each time they are resumed.
        if path is None or frame in self._frames:
            return
        self._frames.add(frame)
        self.calls[path] += 1
        if not frame.f_code.co_name.startswith("<") or frame.f_code.co_name == "<lambda>":
            self.functions.add(frame.f_code)
        caller = frame.f_back
        while caller is not None and self._path_of(caller) is None:
            caller = caller.f_back
        if caller is not None and self._path_of(caller) != path:
            self.hops[path] += 1

    def _path_of(self, frame: FrameType) -> str | None:
        """Return the path of a frame's file below the checkout; None for a file outside the package."""
        name = frame.f_code.co_filename
        if name not in self._paths:
            path = Path(name).resolve()
            is_own = not name.startswith("<") and (path.is_relative_to(PACKAGE) or path.is_relative_to(NODES))
            self._paths[name] = str(path.relative_to(NODES.parent)) if is_own else None
        return self._paths[name]


async def recorded(turn: Callable[[], Awaitable[object]]) -> Turn:
    """Record the calls of the second of two equal turns."""
    seen = Turn()
    await turn()
    threading.setprofile(seen.record)
    sys.setprofile(seen.record)
    try:
        await turn()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen


async def of_graph() -> Turn:
    """Measure a turn through the compiled graph."""
    graph = agent()
    return await recorded(lambda: graph.ainvoke({"messages": [("user", "find a")]}))


async def of_post(path: str, body: dict[str, Any]) -> Turn:
    """Measure a turn through one POST, in process.

    Args:
        path: Path of the request.
        body: JSON of the request.
    """

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield agent()

    app = create_app(AgentSource("agent", "", "memory:", opened), settings=ServerSettings())
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):

        async def turn() -> None:
            (await http.post(path, json=body)).raise_for_status()

        return await recorded(turn)


async def measure() -> dict[str, Turn]:
    """Return the calls of a turn, by way into the agent."""
    chat = {"model": "agent", "messages": [{"role": "user", "content": "find a"}]}
    return {
        "graph.ainvoke": await of_graph(),
        "POST /v1/chat/completions": await of_post("/v1/chat/completions", chat),
        "POST /v1/responses": await of_post("/v1/responses", {"model": "agent", "input": "find a"}),
    }


def main() -> None:
    """Print the figures of each way, with `--list` also those of each file; exit with an error above a ceiling."""
    above = False
    for way, turn in asyncio.run(measure()).items():
        for path, calls in sorted(turn.calls.items()) if "--list" in sys.argv else ():
            print(f"{turn.hops[path]:5} {calls:5} {path}")
        for name, found, most in zip(Counts._fields, turn.counts, CEILINGS[way], strict=True):
            print(f"{way}: {found} {name}, at most {most}")
            above = above or found > most
    if above:
        sys.exit("A turn takes a longer way through the package than before: join what belongs together.")


if __name__ == "__main__":
    main()
