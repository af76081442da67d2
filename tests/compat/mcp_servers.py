"""The MCP client against a server of the SDK 2.x, which an environment of its own has, over each transport."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.mcp import McpTools, open_mcp_tools
from tests.interfaces.server.process import ROOT
from tests.support.agents import asks

REQUIREMENTS = ["mcp>=2", "uvicorn"]
_SERVER = ["-m", "tests.compat.mcp_asking_server"]
_WAIT_S = 60
# Without sessions, the versions with a handshake have no way to ask; those without one need the SDK 2.x.
_NO_WAY = {
    "error": "MCP server 'hotel': Cannot send 'elicitation/create': this transport context has no back-channel for "
    "server-initiated requests."
}
_CALLS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "double": ({"number": 4}, [], [8]),
    "hotel_read_resource": ({"uri": "hotel://house"}, [], ["Ten rooms."]),
    "book": ({"room": "1"}, ["Book room 1?"], ["accept: True"]),
    "reserve": ({"room": "1"}, ["Reserve room 1?"], ["reserved 1: True"]),
}
"""Tool → arguments, the questions to the person that are accepted, and the results."""


def faults(python: str) -> dict[str, list[str]]:
    """The faults of the client, by transport.

    Args:
        python: The interpreter of the environment.
    """
    transports = ("stdio", "streamable-http", "stateless", "sse")
    return {f"MCP server of the SDK 2.x, {each}": asyncio.run(_check(python, each)) for each in transports}


async def _check(python: str, transport: str) -> list[str]:
    wrong: list[str] = []
    try:
        async with asyncio.timeout(_WAIT_S), _opened(python, transport) as tools:
            for name, (arguments, questions, results) in _CALLS.items():
                seen = await _called(tools, name, arguments)
                expected = ([], [_NO_WAY]) if transport == "stateless" and questions else (questions, results)
                if seen != expected:
                    wrong.append(f"{name}: {seen!r}, not {expected!r}")
            if sorted(tool.name for tool in tools) != sorted([*_CALLS, "hotel_list_resources"]):
                wrong.append(f"{tools!r}, {tools.failed!r}")
    except Exception as error:  # noqa: BLE001 - a case that fails is a finding
        wrong.append(repr(error))
    return wrong


async def _called(tools: McpTools, name: str, arguments: dict[str, Any]) -> tuple[list[str], list[Any]]:
    model = ScriptedChatModel([asks(("c", name, arguments)), "Done."])
    session = Session(create_graph_agent(model, tools=tools, checkpointer=InMemorySaver()), "s")
    result = await session.run("go")
    questions = [asked.value["message"] for asked in result.interrupts]
    if questions:
        result = await session.resume("yes")
    return questions, [*result.results.values()]


@asynccontextmanager
async def _opened(python: str, transport: str) -> AsyncIterator[McpTools]:
    environment = {"PYTHONPATH": str(ROOT)}
    if transport == "stdio":
        stdio = {"transport": "stdio", "command": python, "args": [*_SERVER, "stdio", "0"], "env": environment}
        async with open_mcp_tools({"hotel": {**stdio, "resources": True}}) as tools:
            yield tools
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The SDK binds the port itself, and prints nothing when it listens.
    process = await asyncio.create_subprocess_exec(
        *(python, *_SERVER, transport, str(port)),
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not await asyncio.to_thread(_listens, port):
            await asyncio.sleep(0.05)
        kind, path = ("sse", "sse") if transport == "sse" else ("http", "mcp")
        http = {"transport": kind, "url": f"http://127.0.0.1:{port}/{path}", "resources": True}
        async with open_mcp_tools({"hotel": http}) as tools:
            yield tools
    finally:
        process.kill()
        await process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
