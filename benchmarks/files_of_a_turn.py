"""Counts the modules of the package whose code one plain turn runs: `python -m benchmarks.files_of_a_turn [--list]`.

A turn is one input with one native tool call and an answer, after a first one that has warmed caches. It is measured
through `graph.ainvoke`, through a POST to chat completions and through one to Responses. Above a ceiling the program
fails; lower a ceiling when the number falls.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from langchain_core.tools import tool

import graph_agent
from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.interfaces.server.app import create_app
from graph_agent.interfaces.server.host import AgentSource
from graph_agent.interfaces.server.settings import ServerSettings

PACKAGE = Path(graph_agent.__file__).parent
NODES = PACKAGE.parent / "nodes"
CEILINGS = {"graph.ainvoke": 58, "POST /v1/chat/completions": 81, "POST /v1/responses": 98}
"""Modules at most, by way into the agent."""


@tool
def look_up(text: str) -> str:
    """Look a text up."""
    return text


look_up.metadata = {"effect": "read"}


def agent() -> CompiledAgentGraph:
    """Return an agent that calls its tool once for each input."""
    call = '{"tool_calls": [{"id": "c", "name": "look_up", "arguments": {"text": "a"}}]}'
    return create_graph_agent(ScriptedChatModel([call, "Found a."], cycle=True), tools=[look_up])


async def names_in(turn: Callable[[], Awaitable[object]]) -> set[str]:
    """Return the file names of all code that the second of two equal turns runs."""
    seen: set[str] = set()

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    await turn()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        await turn()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen


def modules_in(seen: set[str]) -> list[str]:
    """Return the paths of the package's modules among file names."""
    paths = {Path(name).resolve() for name in seen if not name.startswith("<")}
    own = [path for path in paths if path.is_relative_to(PACKAGE) or path.is_relative_to(NODES)]
    return sorted(str(path.relative_to(NODES.parent)) for path in own)


async def of_graph() -> list[str]:
    """Measure a turn through the compiled graph."""
    graph = agent()
    return modules_in(await names_in(lambda: graph.ainvoke({"messages": [("user", "find a")]})))


async def of_post(path: str, body: dict[str, Any]) -> list[str]:
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

        return modules_in(await names_in(turn))


async def measure() -> dict[str, list[str]]:
    """Return the modules of a turn, by way into the agent."""
    chat = {"model": "agent", "messages": [{"role": "user", "content": "find a"}]}
    return {
        "graph.ainvoke": await of_graph(),
        "POST /v1/chat/completions": await of_post("/v1/chat/completions", chat),
        "POST /v1/responses": await of_post("/v1/responses", {"model": "agent", "input": "find a"}),
    }


def main() -> None:
    """Print the number of modules for each way, with `--list` also their paths; exit with an error above a ceiling."""
    found = asyncio.run(measure())
    for way, modules in found.items():
        for path in modules if "--list" in sys.argv else ():
            print(path)
        print(f"{way}: {len(modules)} files, at most {CEILINGS[way]}")
    if any(len(modules) > CEILINGS[way] for way, modules in found.items()):
        sys.exit("A turn runs code of more modules than before: let a step join the module of its idea.")


if __name__ == "__main__":
    main()
