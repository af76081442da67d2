"""Connections are validated before any server starts; the message names the field, the value and the fix."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import httpx
import pytest

from graph_agent.errors import ConfigError
from graph_agent.integrations.mcp.connections import ServerConfig, check_connections
from graph_agent.mcp import open_mcp_tools

STDIO = {"transport": "stdio", "command": "x"}
HTTP = {"transport": "http", "url": "http://127.0.0.1:9/mcp"}


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ([], "MCP server 's': a connection is a mapping such as {'transport': 'stdio', …}; got []."),
        ({}, "MCP server 's': 'transport' is missing; known: http, sse, stdio, streamable-http, streamable_http. "),
        ({"command": "x"}, "'transport' is missing; known: .* Did you mean 'stdio'?"),
        ({"transport": "studio"}, "unknown transport 'studio'; known: .* Did you mean 'stdio'?"),
        ({"transport": None}, "unknown transport None; known: "),
        ({"transport": "stdio"}, "transport 'stdio' needs 'command', the program to start; got None."),
        ({**STDIO, "command": ["x"]}, "needs 'command', the program to start; got ['x']."),
        ({**STDIO, "arg": []}, "unknown key 'arg' for transport 'stdio'; did you mean 'args'? Known: .* "),
        ({**STDIO, "url": "x"}, "unknown key 'url' for transport 'stdio'; known: "),
        ({**STDIO, "args": "server.py"}, "'args' must be a list of texts, such as ['server.py']; got 'server.py'."),
        ({**STDIO, "args": ["--port", 8080]}, "args[1] must be text; got 8080. In YAML, put it in quotes."),
        ({**STDIO, "env": ["A=b"]}, "'env' must map texts to texts; got list."),
        ({**STDIO, "env": {"PORT": 8080}}, "env['PORT'] must be text; got int. In YAML, put it in quotes."),
        ({**STDIO, "cwd": 3}, "'cwd' must be a path; got 3."),
        ({**STDIO, "connect_timeout_s": 0}, "MCP server 's': connect_timeout_s=0: Input should be greater than 0."),
        ({**STDIO, "connect_timeout_s": True}, "connect_timeout_s=True: Input should be a valid number."),
        ({**STDIO, "tool_prefix": 3}, "tool_prefix=3: it must be true (for 's_') or a text."),
        ({**STDIO, "pin_tools": "yes"}, "pin_tools='yes': Input should be a valid boolean."),
        ({**STDIO, "max_message_bytes": 10}, "max_message_bytes=10: Input should be greater than or equal to 1024."),
        ({**STDIO, "stray_output": "drop"}, "stray_output='drop': Input should be 'error' or 'ignore'."),
        ({"transport": "sse"}, "transport 'sse' needs 'url', beginning with http:// or https://; got None."),
        ({**HTTP, "url": "localhost:80"}, "beginning with http:// or https://; got 'localhost:80'."),
        ({**HTTP, "headers": {"X": None}}, "headers['X'] must be text; got NoneType."),
        ({**HTTP, "timeout": "30"}, "'timeout' must be seconds above zero; got '30'."),
        ({**HTTP, "auth": "token"}, "'auth' must be an httpx.Auth; got str."),
        ({**HTTP, "transport": "sse", "terminate_on_close": True}, "unknown key 'terminate_on_close'"),
    ],
)
def test_a_bad_connection_is_refused(connection: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_connections({"s": connection}, None)
    for part in message.split(".*"):
        assert part.strip() in str(raised.value)


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ("token", "'auth' must be an httpx.Auth, or map server names to them; got str."),
        ({"web": "token"}, "auth['web'] must be an httpx.Auth; got str."),
        (
            {"wbe": httpx.Auth()},
            "'auth' names 'wbe', which is not an MCP server over HTTP; known: web.",
        ),
        ({"local": httpx.Auth()}, "'auth' names 'local', which is not an MCP server over HTTP; known: web."),
    ],
)
def test_bad_auth_is_refused(auth: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_connections({"web": HTTP, "local": STDIO}, auth)
    assert message in str(raised.value)


@pytest.mark.parametrize("connections", [None, [STDIO]])
def test_connections_must_be_a_mapping(connections: Any) -> None:
    with pytest.raises(ConfigError, match="must map server names to connections; got"):
        check_connections(connections, None)


@pytest.mark.parametrize("name", ["", 3])
def test_a_server_has_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="names must be non-empty text; got"):
        check_connections({name: STDIO}, None)


def test_a_secret_is_not_in_the_message() -> None:
    with pytest.raises(ConfigError) as raised:
        check_connections({"s": {**HTTP, "headers": {"Authorization": b"hunter2"}}}, None)
    assert "hunter2" not in str(raised.value)


def test_defaults_aliases_and_units() -> None:
    checked = check_connections(
        {
            "plain": {**STDIO, "cwd": None},
            "web": {**HTTP, "timeout": timedelta(minutes=1), "connect_timeout_s": 5, "tool_prefix": True},
            "old": {**HTTP, "transport": "sse", "tool_prefix": "o."},
        },
        None,
    )
    assert checked == [
        ServerConfig(name="plain", transport="stdio", options={"command": "x"}),
        ServerConfig(
            name="web",
            transport="streamable_http",
            options={"url": HTTP["url"], "timeout": 60.0},
            tool_prefix="web_",
            connect_timeout_s=5.0,
        ),
        ServerConfig(name="old", transport="sse", options={"url": HTTP["url"]}, tool_prefix="o."),
    ]


def test_auth_reaches_the_servers_over_http_that_have_none_of_their_own() -> None:
    shared, own = httpx.BasicAuth("shared", "x"), httpx.BasicAuth("own", "x")
    servers = {"local": STDIO, "web": HTTP, "other": {**HTTP, "auth": own}}

    for_all = {server.name: server.options.get("auth") for server in check_connections(servers, shared)}
    for_one = {server.name: server.options.get("auth") for server in check_connections(servers, {"web": shared})}

    assert for_all == for_one == {"local": None, "web": shared, "other": own}


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_stream_may_be_silent_while_a_question_waits_for_its_answer(transport: str) -> None:
    limits: list[float | None] = []

    def make(**options: Any) -> httpx.AsyncClient:
        limits.append(options["timeout"].read)
        return httpx.AsyncClient(**options)

    web = {**HTTP, "transport": transport, "httpx_client_factory": make}
    settings: list[dict[str, Any]] = [{}, {"answer_timeout_s": 7200}, {"answer_timeout_s": 1}, {"sse_read_timeout": 5}]
    async with open_mcp_tools({f"s{index}": {**web, **each} for index, each in enumerate(settings)}):
        assert sorted(map(float, filter(None, limits))) == [5, 300, 3600, 7200]


async def test_a_bad_connection_starts_nothing(tmp_path: Any) -> None:
    mark = tmp_path / "started"
    good = {"transport": "stdio", "command": sys.executable, "args": ["-c", f"open({str(mark)!r}, 'w')"]}
    with pytest.raises(ConfigError, match="unknown transport"):
        async with open_mcp_tools({"good": good, "bad": {"transport": "carrier pigeon"}}):
            pytest.fail("it opened")
    assert not mark.exists()
