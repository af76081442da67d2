"""An unreadable or oversized reply fails its call at once, with the cause; the session continues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from graph_agent.integrations.mcp.messages import request_id_in
from graph_agent.mcp import McpCallError, McpTools, open_mcp_tools
from tests.support.a2a_servers import serving
from tests.support.mcp_servers import running
from tests.support.mcp_servers.running import until

RAW = str(Path(running.__file__).with_name("raw_server.py"))
BUSY = "It is not known whether the call took effect."


def raw(**extra: Any) -> dict[str, Any]:
    return {"transport": "stdio", "command": "python", "args": [RAW], **extra}


def named(tools: McpTools, name: str) -> Any:
    return next(tool for tool in tools if tool.name == name)


async def fails(tools: McpTools, name: str, **arguments: Any) -> McpCallError:
    async with asyncio.timeout(30):
        with pytest.raises(McpCallError) as raised:
            await named(tools, name).ainvoke(arguments)
    return raised.value


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param('{"jsonrpc":"2.0","id":ID,"result":{"co', "its reply is malformed (Invalid JSON: EOF", id="cut"),
        pytest.param(
            '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\\ud83d"}]}}',
            "its reply is malformed (Invalid JSON: ",
            id="half-a-surrogate-pair",
        ),
        pytest.param('{"id":ID,"foo":1}', "its reply is malformed (no JSON-RPC message)", id="no-message"),
        pytest.param('{"jsonrpc":"2.0","id":ID,"result":"\xff"}', "its reply is malformed ('utf-8' codec", id="bytes"),
        pytest.param('{"result":{"id":77,"a":[{}]},"id":ID,"x', "its reply is malformed (Invalid JSON", id="late-id"),
    ],
)
async def test_a_malformed_reply_fails_its_call_alone(line: str, reason: str) -> None:
    async with open_mcp_tools({"raw": raw()}) as tools:
        other = asyncio.ensure_future(named(tools, "hold").ainvoke({}))
        error = await fails(tools, "raw", line=line)
        message = str(error)
        assert (message.startswith(f"MCP server 'raw' gave no readable reply to 'raw': {reason}"), BUSY in message) == (
            True,
            True,
        )
        assert (error.may_have_run, other.done()) == (True, False)
        other.cancel()


async def test_a_stray_line_fails_the_calls_under_way_with_the_fix() -> None:
    async with open_mcp_tools({"raw": raw()}) as tools:
        error = await fails(tools, "raw", line="Searching…".encode().decode("latin-1"))
    assert str(error) == (
        "MCP server 'raw': no readable reply came while 'raw' was running (it sent a line that is no JSON-RPC message: "
        "'Searching…'; print to stderr instead, or set 'stray_output: ignore' for the server); "
        "it may have taken effect."
    )


async def test_a_stray_line_before_the_reply_harms_nothing() -> None:
    line = 'debug\n{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"fine"}]}}'
    async with open_mcp_tools({"raw": raw()}) as tools:
        (block,) = await named(tools, "raw").ainvoke({"line": line})
    assert block["text"] == "fine"


async def test_stray_lines_can_be_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async with open_mcp_tools({"raw": raw(stray_output="ignore")}) as tools:
        held = asyncio.ensure_future(named(tools, "raw").ainvoke({"line": "debug"}))
        await until(lambda: "no JSON-RPC message: 'debug'" in caplog.text)
        (block,) = await named(tools, "add").ainvoke({})
        assert (block["text"], held.done()) == ("add done", False)
        held.cancel()


async def test_a_long_reply_is_refused_while_it_arrives_and_the_session_goes_on() -> None:
    async with open_mcp_tools({"raw": raw(max_message_bytes=10_000)}) as tools:
        # No line end follows: a client that waits for it would wait for ever.
        error = await fails(tools, "raw", line='{"jsonrpc":"2.0","id":ID,"result":{"x":"' + "x" * 3000, times=10)
        (block,) = await named(tools, "add").ainvoke({})
    assert (str(error), block["text"]) == (
        "MCP server 'raw' gave no readable reply to 'raw': its reply is longer than 10,000 bytes, the limit of one "
        f"message (max_message_bytes). {BUSY}",
        "add done",
    )


async def test_a_malformed_start_is_reported_at_once(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text('input(); print(\'{"jsonrpc":"2.0","id":0,"result":{"prot\', flush=True); input()')
    async with asyncio.timeout(30), open_mcp_tools({"bad": raw(args=[str(script)], connect_timeout_s=60)}) as tools:
        assert "its reply is malformed (Invalid JSON" in tools.failed["bad"]


def mcp_over_http(reply: Any) -> Starlette:
    """A server over streamable HTTP; `reply(id)` gives the response to each call of its tool."""

    async def post(request: Request) -> Response:
        message = json.loads(await request.body())
        id_ = message.get("id")
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "web", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "raw", "inputSchema": {"type": "object"}}]},
        }
        if message["method"] == "tools/call":
            return await asyncio.to_thread(reply, id_)
        if id_ is None:
            return Response(status_code=202)
        body = json.dumps({"jsonrpc": "2.0", "id": id_, "result": results[message["method"]]})
        return Response(body, media_type="application/json")

    async def get(request: Request) -> Response:
        return Response(status_code=405)

    return Starlette(routes=[Route("/mcp", post, methods=["POST"]), Route("/mcp", get, methods=["GET", "DELETE"])])


async def endless(id_: int, *, events: bool) -> AsyncIterator[bytes]:
    yield b"data: " * events + f'{{"jsonrpc":"2.0","id":{id_},"result":{{"x":"'.encode()
    while True:
        yield b"x" * 1000
        await asyncio.sleep(0)


@asynccontextmanager
async def web_tools(reply: Any) -> AsyncIterator[McpTools]:
    with serving(lambda _: mcp_over_http(reply)) as url:
        connection = {"transport": "http", "url": f"{url}/mcp", "max_message_bytes": 10_000}
        async with open_mcp_tools({"web": connection}) as tools:
            yield tools


@pytest.mark.parametrize("events", [False, True])
async def test_over_http_an_endless_reply_is_refused_while_it_arrives(events: bool) -> None:
    media = "text/event-stream" if events else "application/json"
    async with web_tools(lambda id_: StreamingResponse(endless(id_, events=events), media_type=media)) as tools:
        error = await fails(tools, "raw")
    assert "its reply is longer than 10,000 bytes" in str(error)


@pytest.mark.parametrize("events", [False, True])
async def test_over_http_a_malformed_reply_is_reported(events: bool) -> None:
    def reply(id_: int) -> Response:
        line = f'{{"jsonrpc":"2.0","id":{id_},"result":{{"x":"\\ud83d"}}}}'
        if events:
            return Response(f"event: message\ndata: {line}\n\n", media_type="text/event-stream")
        return Response(line, media_type="application/json")

    async with web_tools(reply) as tools:
        error = await fails(tools, "raw")
    assert "its reply is malformed (Invalid JSON: " in str(error)


@given(
    st.dictionaries(st.text(max_size=5), st.recursive(st.integers() | st.text(), st.lists, max_leaves=5), max_size=4),
    st.integers(0, 10**9) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.integers(0, 400),
)
def test_the_id_is_found_in_damaged_json(rest: dict[str, Any], id_: int | str, cut: int) -> None:
    message = {**{key: value for key, value in rest.items() if key != "id"}, "id": id_}
    text = json.dumps(message)
    found = request_id_in(text.encode()), request_id_in(text[:cut].encode())
    is_cut = json.dumps({"id": id_})[1:-1] not in text[:cut]
    assert (found[0], is_cut or found[1] in (id_, None)) == (id_, True)
