"""MCP servers that die: the result of their running calls, and the restart for the next ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from langchain_core.tools import ToolException

from graph_agent.mcp import McpCallError, open_mcp_tools
from tests.support.mcp_servers.running import HttpServer, lines, stdio, text, until


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[HttpServer, Path]]:
    folder = tmp_path_factory.mktemp("shared")
    async with HttpServer(folder) as server:
        yield server, folder


OVER_HTTP = pytest.mark.parametrize(
    "http",
    [("streamable-http",), ("streamable-http", "--json"), ("streamable-http", "--resumable"), ("sse",)],
    ids="".join,
)


async def test_a_killed_process_is_started_again_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_mcp_tools({"demo": stdio(tmp_path)}) as tools:
        os.kill(int(await text(tools, "pid")), signal.SIGKILL)
        # Without a turn of the loop in between: a reading call may be repeated.
        impatient = asyncio.create_task(text(tools, "pid"))
        await until(lambda: len(lines(tmp_path, "starts")) == 2)
        impatient.cancel()  # must not cancel the start that the others wait for
        pids = set(await asyncio.gather(*(text(tools, "pid") for _ in range(20))))
        assert list(pids) == lines(tmp_path, "starts")[1:]

        os.kill(int(pids.pop()), signal.SIGKILL)
        await until(lambda: caplog.text.count("the session ended: it closed the connection") == 2)
        # The death was noticed, so it is certain that this has not run, writer or not.
        assert '"number": 7' in await text(tools, "room")
    assert len(lines(tmp_path, "starts")) == 3


async def test_a_writing_call_that_was_running_is_not_repeated(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    connection = stdio(tmp_path)
    program.symlink_to(connection["args"][0])
    async with open_mcp_tools({"demo": {**connection, "args": [str(program)]}}) as tools:
        sibling = asyncio.create_task(text(tools, "hang"))
        await until(lambda: lines(tmp_path, "effects") == ["hanging"])
        program.rename(tmp_path / "away.py")

        with pytest.raises(McpCallError) as raised:
            await text(tools, "die_writing")
        with pytest.raises(McpCallError, match="'hang' was running"):
            await sibling

        assert str(raised.value) == (
            "MCP server 'demo': the session ended while 'die_writing' was running (it closed the connection); "
            "it may have taken effect."
        )
        assert raised.value.may_have_run
        assert isinstance(raised.value, ToolException)
        assert lines(tmp_path, "effects") == ["hanging", "die_writing always"]

        # While it does not come back each call fails by itself, and the first one after that works.
        results = await asyncio.gather(*(text(tools, "room") for _ in range(3)), return_exceptions=True)
        assert [isinstance(result, McpCallError) and result.may_have_run for result in results] == [False] * 3
        assert "cannot be reached: it closed the connection; the end of its stderr: " in str(results[0])
        assert "No such file or directory" in str(results[0])
        assert str(results[0]).endswith("The next call tries again.")
        (tmp_path / "away.py").rename(program)
        assert await text(tools, "pid") == lines(tmp_path, "starts")[1]


async def test_a_repeatable_call_is_repeated_once(tmp_path: Path) -> None:
    async with open_mcp_tools({"demo": stdio(tmp_path)}) as tools:
        assert (await text(tools, "die_reading", when="first")).startswith("alive in")
        with pytest.raises(McpCallError, match="may have taken effect"):
            await text(tools, "die_idempotent")
    assert lines(tmp_path, "effects") == [*["die_reading first"] * 2, *["die_idempotent always"] * 2]


@OVER_HTTP
async def test_over_http_a_writing_call_that_was_running_is_not_repeated(tmp_path: Path, http: tuple[str, ...]) -> None:
    async with HttpServer(tmp_path, *http) as server, open_mcp_tools({"demo": server.connection()}) as tools:
        async with asyncio.timeout(30):
            with pytest.raises(McpCallError, match=r"'die_writing' was running .* it may have taken effect") as raised:
                await text(tools, "die_writing")
            assert raised.value.may_have_run
            await server.ended()

            with pytest.raises(McpCallError, match="cannot be reached: ConnectError") as unreached:
                await text(tools, "room")
            assert not unreached.value.may_have_run

        server.kill()
        await server.start()
        assert '"number": 7' in await text(tools, "room")
    assert lines(tmp_path, "effects") == ["die_writing always"]


async def test_over_http_a_restarted_server_is_used_by_the_next_call(tmp_path: Path) -> None:
    async with HttpServer(tmp_path) as server, open_mcp_tools({"demo": server.connection()}) as tools:
        server.kill()
        await server.start()
        # The new server refuses the old session, so it is certain that these have not run.
        rooms = set(await asyncio.gather(*(text(tools, "room") for _ in range(5))))
        assert len(rooms) == 1
        assert await text(tools, "pid") == lines(tmp_path, "starts")[1]


@pytest.mark.parametrize(
    ("status", "message", "may_have_run"),
    [
        ("403 not yours", "did not take the call (HTTP 403 Forbidden from http://", False),
        ("429 slow down", "slow down); 'room' has not run.", False),
        ("404 gone", "cannot be reached: HTTP 404 Not Found", False),
        ("400 no valid session id", "cannot be reached: HTTP 400 Bad Request", False),
        ("503 try later", "was running (HTTP 503 Service Unavailable", True),
    ],
)
async def test_a_refusal_is_reported_verbatim(
    shared: tuple[HttpServer, Path], caplog: pytest.LogCaptureFixture, status: str, message: str, may_have_run: bool
) -> None:
    server, folder = shared
    (folder / "effects").unlink(missing_ok=True)
    async with open_mcp_tools({"demo": server.connection()}) as tools:
        hanging = asyncio.create_task(text(tools, "hang"))
        await until(lambda: lines(folder, "effects") == ["hanging"])

        (folder / "status").write_text(status)
        with pytest.raises(McpCallError) as raised:
            await text(tools, "room")
        (folder / "status").unlink()

        assert message in str(raised.value)
        assert ("the session ended" in caplog.text) is (status[:3] in ("400", "404", "503"))
        assert raised.value.may_have_run is may_have_run
        assert '"number": 7' in await text(tools, "room")
        assert not hanging.done(), "a refusal of one call must not end another"
        hanging.cancel()
        await until(lambda: lines(folder, "effects") == ["hanging", "cancelled"])
