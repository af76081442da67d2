"""Servers are opened concurrently, failed ones are named, and no process is left after the block."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError, McpServerError
from graph_agent.mcp import McpCallError, McpTools, open_mcp_tools
from tests.support.agents import echo
from tests.support.mcp_servers import raw_server
from tests.support.mcp_servers.running import HttpServer, gone, lines, stdio, text, until


def script(code: str, *args: str) -> dict[str, Any]:
    return {"transport": "stdio", "command": "python3", "args": ["-c", code, *args]}


async def test_the_tools_of_the_others_are_given_when_servers_are_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    silent = script("import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); sys.stdin.read()", f"{tmp_path}/p")
    connections = {
        "good": stdio(tmp_path, tool_prefix=True),
        "better": stdio(tmp_path, tool_prefix="b."),
        "missing": {"transport": "stdio", "command": "no-such-program"},
        "crashing": script("raise SystemExit('the licence has expired')"),
        "silent": {**silent, "connect_timeout_s": 3},
        "closed": {"transport": "http", "url": "http://127.0.0.1:9/mcp"},
        "closed too": {"transport": "sse", "url": "http://127.0.0.1:9/sse"},
    }
    async with asyncio.timeout(60), open_mcp_tools(connections) as tools:
        names = {tool.name for tool in tools}
        assert {"good_pid", "good_dotted.echo", "b.pid"} <= names
        assert len(names) == len(tools) == 2 * len([name for name in names if name.startswith("b.")])
        assert tools.failed == {
            "missing": "MCP server 'missing' cannot be reached: command='no-such-program': there is no such program; "
            "install it, or use its full path.",
            "crashing": "MCP server 'crashing' cannot be reached: it closed the connection; "
            "the end of its stderr: the licence has expired.",
            "silent": "MCP server 'silent' cannot be reached: it did not come up within 3 s.",
            "closed": "MCP server 'closed' cannot be reached: ConnectError: All connection attempts failed.",
            "closed too": "MCP server 'closed too' cannot be reached: ConnectError: All connection attempts failed.",
        }
        pids = {await text(tools, "good_pid"), await text(tools, "b.pid")}
        assert pids == set(lines(tmp_path, "starts"))
    warnings = [record.message for record in caplog.records if record.name == "graph_agent.mcp"]
    assert sorted(warnings) == sorted(f"{error} Its tools are unavailable." for error in tools.failed.values())
    assert gone((tmp_path / "p").read_text())


async def test_a_required_server_that_is_down_is_an_error() -> None:
    connection = {"transport": "stdio", "command": "no-such-program", "required": True}

    with pytest.raises(McpServerError) as caught:
        async with open_mcp_tools({"needed": connection}):
            pass

    assert str(caught.value) == (
        "MCP server 'needed' cannot be reached: command='no-such-program': there is no such program; install it, or "
        "use its full path. It is required; start it, or remove 'required' from it."
    )


@pytest.mark.parametrize("spread", [False, True])
async def test_a_server_that_comes_up_after_the_start_brings_its_tools(tmp_path: Path, spread: bool) -> None:
    late = tmp_path / "late.py"
    connections = {
        "good": stdio(tmp_path, tool_prefix=True),
        "late": {"transport": "stdio", "command": "python", "args": [str(late)], "connect_timeout_s": 20},
    }
    async with asyncio.timeout(60), open_mcp_tools(connections) as tools:
        model = ScriptedChatModel(["Hello."], cycle=True)
        graph = create_graph_agent(model, tools=[*tools, echo] if spread else tools, checkpointer=InMemorySaver())
        first, second = Session(graph, "first"), Session(graph, "second")
        result = await first.run("go")
        builder: Any = graph.builder
        before = await builder.mcp_states()
        shutil.copy(raw_server.__file__, late)
        after = await builder.mcp_states()
        await second.run("go")
        failed = dict(tools.failed)
        warned = [[each["type"] for each in await talk.events()].count("warning") for talk in (first, second)]

    assert (before, after, failed, warned) == (
        {"good": True, "late": False},
        {"good": True, "late": True},
        {},
        [1, 0],
    )
    assert "hold" in model.requests[-1].tool_names
    assert result.status == "COMPLETED"


async def test_servers_start_side_by_side(tmp_path: Path) -> None:
    # Each ends only after it has seen the other's mark: one after the other, the first would wait until its timeout.
    code = (
        "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch()\n"
        "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)\n"
        "raise SystemExit('met')"
    )
    one, two = f"{tmp_path}/one", f"{tmp_path}/two"
    async with open_mcp_tools({"a": script(code, one, two), "b": script(code, two, one)}) as tools:
        assert ["met." in error for error in tools.failed.values()] == [True, True]


async def test_no_servers_is_no_error() -> None:
    async with open_mcp_tools({}) as tools:
        assert (tools, tools.failed) == ([], {})


async def test_two_tools_of_one_name_are_refused_and_the_servers_closed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        async with open_mcp_tools({"inside": stdio(tmp_path), "outside": stdio(tmp_path)}):
            pytest.fail("it opened")
    assert str(raised.value) == (
        "MCP servers 'inside' and 'outside' both have a tool named 'pid'; "
        "give one of them a 'tool_prefix', e.g. {'tool_prefix': 'outside_'}."
    )
    assert [gone(pid) for pid in lines(tmp_path, "starts")] == [True, True]


def test_leaving_ends_the_processes_and_the_calls(tmp_path: Path) -> None:
    async def leave() -> McpTools:
        async with open_mcp_tools({"demo": stdio(tmp_path)}) as tools:
            hanging = asyncio.create_task(text(tools, "hang"))
            await until(lambda: lines(tmp_path, "effects") == ["hanging"])
        assert [gone(pid) for pid in lines(tmp_path, "starts")] == [True]
        with pytest.raises(McpCallError, match=r"'hang' was running \(it was closed\); it may have taken effect"):
            await hanging
        with pytest.raises(McpCallError, match="its `async with` block has ended"):
            await text(tools, "pid")
        return tools

    tools = asyncio.run(leave())
    for call in (lambda: asyncio.run(text(tools, "pid")), lambda: tools[0].invoke({})):
        with pytest.raises(McpCallError, match="The event loop that opened the MCP servers is not running"):
            call()


async def test_a_cancelled_scope_ends_the_processes(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with open_mcp_tools({"demo": stdio(tmp_path)}):
            scope.cancel()
            await anyio.sleep_forever()
    assert [gone(pid) for pid in lines(tmp_path, "starts")] == [True]


async def test_cancelling_the_opening_ends_the_processes(tmp_path: Path) -> None:
    silent = script("import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); sys.stdin.read()", f"{tmp_path}/p")

    async def open_it() -> None:
        async with open_mcp_tools({"silent": silent}):
            pytest.fail("it opened")

    opening = asyncio.create_task(open_it())
    await until(lambda: (tmp_path / "p").exists() and (tmp_path / "p").read_text())
    opening.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await opening
    assert gone((tmp_path / "p").read_text())


async def test_a_server_receives_only_the_connections_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    caplog.set_level(logging.DEBUG, "graph_agent.mcp")
    code = (
        "import os, sys\n"
        "print(sys.executable, os.getcwd(), [os.environ.get(name) for name in ('SECRET', 'A', 'B')], file=sys.stderr)"
    )
    env = {"A": "${SECRET}!", "B": "${NOT_SET}"}
    async with open_mcp_tools({"s": {**script(code), "env": env, "cwd": tmp_path}}) as tools:
        expected = f"the end of its stderr: {sys.executable} {tmp_path} [None, 'hunter2!', '${{NOT_SET}}']"
        assert expected in tools.failed["s"]
    assert "An MCP server's env refers to ${NOT_SET}, which is not set" in caplog.text
    assert f"s: {sys.executable}" in caplog.text, "stderr is logged"


class Bearer(httpx.Auth):
    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["Authorization"] = "Bearer t0ken"
        yield request


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
async def test_over_http(tmp_path: Path, transport: str) -> None:
    async with HttpServer(tmp_path, transport, TOKEN="t0ken") as server:
        connections = {
            "auth": server.connection(tool_prefix="a."),
            "headers": server.connection(tool_prefix="h.", headers={"Authorization": "Bearer t0ken"}),
            "stranger": server.connection(),
        }
        async with open_mcp_tools(connections, auth={"auth": Bearer()}) as tools:
            assert await text(tools, "a.pid") == await text(tools, "h.pid") == lines(tmp_path, "starts")[0]
            assert list(tools.failed) == ["stranger"]
            assert "401 Unauthorized" in tools.failed["stranger"]

            hanging = asyncio.create_task(text(tools, "a.hang"))
            await until(lambda: lines(tmp_path, "effects") == ["hanging"])
            assert await text(tools, "a.dotted.echo", text="x" * 300_000) == "x" * 300_000, "beside a call that hangs"
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            await until(lambda: lines(tmp_path, "effects") == ["hanging", "cancelled"])
            assert await text(tools, "a.pid") == lines(tmp_path, "starts")[0]
