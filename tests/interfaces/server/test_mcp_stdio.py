"""An agent over MCP on standard input and output, in a real process of `graph-agent mcp`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from langchain_core.messages import AIMessage
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.mcp import open_mcp_tools
from graph_agent.persistence import open_saver
from tests.interfaces.server.process import PARROT, ROOT
from tests.support.mcp_client import INITIALIZE, KEY, Person, calling, cancel, request, until
from tests.support.warm_process import warm_python

TOOLS = [f"tests.interfaces.server.parrot:{name}" for name in ("look_up", "wait_for")]
ASKING = {
    **PARROT,
    "tools": [*TOOLS, "tests.support.mcp_client:shout"],
    "config": {"model_retries": 0, "approve": ["look_up"]},
}
LOOK_UP = '!call look_up {"key": "k"}'


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(ASKING))
    options = ["--config", str(tmp_path / "agent.yaml"), "--db", f"sqlite:///{tmp_path / 'sessions.db'}"]
    return [warm_python(), "-m", "graph_agent.cli", "mcp", *options]


@asynccontextmanager
async def connected(command: list[str], person: Any = None) -> AsyncIterator[ClientSession]:
    server = StdioServerParameters(command=command[0], args=command[1:], env={"PYTHONPATH": str(ROOT)})
    async with (
        stdio_client(server) as (read, write),
        ClientSession(read, write, elicitation_callback=person) as session,
    ):
        await session.initialize()
        yield session


def started(command: list[str]) -> subprocess.Popen[str]:
    """A server whose client is this test; the text of a call decides."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        command, text=True, cwd=ROOT, env={**os.environ, "GRAPH_AGENT_MCP_TEXT_APPROVALS": "true"}, **pipes
    )


def send(server: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()


def received(server: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert server.stdout is not None
    return [json.loads(server.stdout.readline()) for _ in range(count)]


async def session_of(folder: Path, session_id: str) -> tuple[str, list[str]]:
    """The status of a session, and those of its calls."""
    async with open_saver(f"sqlite:///{folder / 'sessions.db'}") as saver:
        session = Session(create_graph_agent(ScriptedChatModel([]), checkpointer=saver), session_id)
        results: list[str] = [each["status"] for each in await session.events() if each["type"] == "tool_result"]
        return (await session.status()).value, results


async def test_a_client_starts_asks_and_approves(command: list[str], tmp_path: Path) -> None:
    person = Person({"decision": "approve"})
    async with connected(command, person) as client:
        result = await client.call_tool("parrot", {"input": LOOK_UP, "session": "s"})

    assert result.structuredContent is not None
    assert (person.asked, result.structuredContent["status"], await session_of(tmp_path, "s")) == (
        ['A call waits for approval: look_up {"key": "k"}'],
        "COMPLETED",
        ("COMPLETED", ["success"]),
    )


async def test_a_tool_that_prints_does_not_break_the_protocol(command: list[str]) -> None:
    async with connected(command) as client:
        result = await client.call_tool("parrot", {"input": '!call shout {"text": "hello"}'})

    assert result.structuredContent is not None
    assert "shout said: read ''" in result.structuredContent["answer"]


async def test_a_cancelled_call_aborts_its_run(command: list[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with connected(command) as client:
        arguments = {"input": f'!call wait_for {{"file": "{gate}"}}', "session": "s"}
        calling = asyncio.create_task(client.call_tool("parrot", arguments))
        await until(gate.with_suffix(".pid").exists)
        await cancel(client, 1)
        with pytest.raises(McpError, match="Request cancelled"):
            await calling
        again = await client.call_tool("parrot", {"input": "hello", "session": "s"})

    assert again.structuredContent is not None
    assert (again.structuredContent["status"], await session_of(tmp_path, "s")) == (
        "COMPLETED",
        ("COMPLETED", ["unknown"]),
    )


def test_both_kinds_of_versions_are_served_on_one_connection(command: list[str]) -> None:
    with started(command) as server:
        send(server, request("server/discover"))
        [found] = received(server, 1)
        send(server, {**request("tools/call", name="parrot", arguments={"input": LOOK_UP}), "id": 2})
        [asked] = received(server, 1)
        send(server, {"jsonrpc": "2.0", "id": 3, "method": "ping"})
        [pong] = received(server, 1)
        assert server.stdin is not None
        server.stdin.close()
        status = server.wait(60)

    assert (found["result"]["supportedVersions"], asked["result"]["resultType"], pong["id"], status) == (
        ["2026-07-28"],
        "input_required",
        3,
        0,
    )


async def test_a_client_that_leaves_during_a_call_without_an_id_aborts_its_run(
    command: list[str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    arguments = {"input": f'!call wait_for {{"file": "{gate}"}}', "session": "s"}
    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    with started(command) as server:
        send(server, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info})
        received(server, 1)
        send(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        call = {"name": "parrot", "arguments": arguments}
        send(server, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        await until(gate.with_suffix(".pid").exists)
        _, errors = await asyncio.to_thread(server.communicate, timeout=60)

    assert (await session_of(tmp_path, "s"), "A run failed" in errors) == (("ABORTED", ["unknown"]), False)


@pytest.mark.parametrize("end", ["close", "kill"])
async def test_a_call_with_an_id_goes_on_in_the_next_process(command: list[str], tmp_path: Path, end: str) -> None:
    gate = tmp_path / "gate"
    arguments = {"input": f'{LOOK_UP}\n!then wait_for {{"file": "{gate}"}}', "session": "s"}
    message = request("tools/call", {}, name="parrot", arguments=arguments, meta={KEY: "once"})
    approve = {**arguments, "input": "approve"}
    answer = request("tools/call", {}, name="parrot", arguments=approve, meta={KEY: "answer"})
    with started(command) as server:
        send(server, message)
        received(server, 1)
        send(server, answer)
        await until(gate.with_suffix(".pid").exists)
        assert server.stdin is not None
        if end == "kill":
            server.kill()
        server.stdin.close()
        server.wait(60)
        assert server.stdout is not None
        server.stdout.read()  # to its end, which is that of the warm process
    gate.touch()
    with started(command) as server:
        send(server, answer)
        [last] = received(server, 1)
        assert server.stdin is not None
        server.stdin.close()
        server.wait(60)

    status, results = await session_of(tmp_path, "s")
    assert (last["result"]["structuredContent"]["status"], status, results[0]) == ("COMPLETED", "COMPLETED", "success")


async def test_another_agent_calls_it_as_a_tool_and_its_person_approves(command: list[str], tmp_path: Path) -> None:
    call = AIMessage("", tool_calls=[{"id": "c1", "name": "parrot", "args": {"input": LOOK_UP}}])
    model = ScriptedChatModel([call, "Done."])
    connection = {"transport": "stdio", "command": command[0], "args": command[1:], "env": {"PYTHONPATH": str(ROOT)}}
    async with open_mcp_tools({"parrot": connection}) as tools, open_saver("memory:") as saver:
        agent = create_graph_agent(model, tools=tools, checkpointer=saver, config=LoopConfig(finalize="direct"))
        session = Session(agent, "outer")
        asked = await session.run("Look k up.")
        done = await session.resume({"action": "accept", "content": {"decision": "approve"}})

    [question] = asked.interrupts
    assert (question.value["message"], done.calls[0].status) == (
        'A call waits for approval: look_up {"key": "k"}',
        "success",
    )
    assert "look_up said: the value of k" in str(done.results["c1"])


@pytest.mark.parametrize("file", ["missing.yaml", "agent.yaml"])
def test_an_agent_that_cannot_be_opened_is_one_line_on_standard_error(tmp_path: Path, file: str) -> None:
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump({**ASKING, "tools": ["tests.interfaces.server.parrot:none"]}))
    command = [warm_python(), "-m", "graph_agent.cli", "mcp", "--config", str(tmp_path / file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)

    assert (ended.returncode, ended.stdout, ended.stderr.startswith("error: ")) == (2, "", True)


def test_a_message_is_one_line_whatever_its_text(command: list[str]) -> None:
    server = started(command)
    for message in (INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"}):
        send(server, message)
    send(server, calling("1\u20282\u20293\x854", "odd"))
    assert server.stdout is not None
    lines = [server.stdout.readline() for _ in range(2)]
    server.communicate(timeout=60)

    assert [len(line.splitlines()) for line in lines] == [1, 1]
    assert "You said: 1\u20282\u20293\x854" in json.loads(lines[1])["result"]["content"][0]["text"]


def test_a_cancellation_of_no_request_is_ignored(command: list[str]) -> None:
    with started(command) as server:
        send(server, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}})
        send(server, request("server/discover"))
        assert server.stdout is not None
        answer = server.stdout.readline()
        server.communicate(timeout=60)

    assert "supportedVersions" in answer
