"""Open MCP servers side by side and keep them open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import mcp.types as types
from langchain_core.tools import BaseTool
from langchain_mcp_adapters.sessions import Connection

from graph_agent.errors import ConfigError, McpServerError
from graph_agent.events import IN_HISTORY
from graph_agent.mcp.connections import check_connections
from graph_agent.mcp.hop import Hop
from graph_agent.mcp.server import Server
from graph_agent.mcp.session import ElicitationHandler, elicitation_for
from graph_agent.mcp.tools import McpTool, to_langchain_tool

logger = logging.getLogger("graph_agent.mcp")


class McpTools(list[BaseTool]):
    """The tools of the servers that came up; `failed` maps each of the others to its error."""

    def __init__(self, tools: Iterable[BaseTool] = (), failed: Mapping[str, str] | None = None) -> None:
        super().__init__(tools)
        self.failed: dict[str, str] = dict(failed or {})
        self.states: Callable[[], Awaitable[dict[str, bool]]] = _no_servers
        """Says of each server whether it can be called now; may be asked from any event loop."""


@asynccontextmanager
async def open_mcp_tools(
    connections: Mapping[str, Connection | dict[str, Any]],
    on_elicitation: ElicitationHandler | None = None,
    auth: httpx.Auth | Mapping[str, httpx.Auth] | None = None,
) -> AsyncIterator[McpTools]:
    """Open every server once, side by side, and give their tools for the length of the block.

    `connections` maps server names to connections as langchain-mcp-adapters has them: `transport` is `stdio`
    (`command`, `args`, `env`, `cwd`), `streamable_http` or `sse` (`url`, `headers`, `timeout` in seconds, …). Two keys
    are ours: `connect_timeout_s`, the seconds a server has to come up (default 30), and `tool_prefix`, text before the
    names of its tools (`True` for `"<server>_"`, default none).

    A stdio server gets PATH, HOME and their like and the connection's `env`, in which `${NAME}` is replaced, and
    nothing else of our environment; `python` means the interpreter running this; what it writes to stderr is logged
    at DEBUG by `graph_agent.mcp`.

    A server that does not come up is logged as a WARNING and stands in `.failed`; the others' tools are given. One that
    dies later is opened again by the next call. A call that was lost is repeated once if it certainly did not run or if
    the tool is marked read-only or idempotent; otherwise it raises `McpCallError`, which says that it may have taken
    effect. Tools can be called from other event loops and threads while the loop that opened them runs.

    `on_elicitation` answers servers that ask the person something: `async (context, params) -> ElicitResult`, with a
    third parameter, `CallbackContext`, where it takes one; without it servers are told that it is unsupported.
    `auth` is used for every server over HTTP, or, as a mapping, for those it names.

    Raises `ConfigError` for a connection that cannot work, before anything starts, and for two tools of one name.
    """
    configs = check_connections(connections, auth)
    servers = [Server(config, elicitation_for(config.name, on_elicitation)) for config in configs]
    try:
        found = await asyncio.gather(*(_tools_or_error(server) for server in servers))
        yield _collect(servers, found, Hop())
    finally:
        # Shielded: processes must be gone even when what ends the block is a cancelled scope.
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*(server.close() for server in servers))


async def _tools_or_error(server: Server) -> list[types.Tool] | str:
    try:
        return await server.open()
    except McpServerError as error:
        logger.warning("%s Its tools are missing.", error, extra=IN_HISTORY)
        return str(error)


def _collect(servers: list[Server], found: list[list[types.Tool] | str], hop: Hop) -> McpTools:
    tools: dict[str, McpTool] = {}
    failed: dict[str, str] = {}
    for server, result in zip(servers, found, strict=True):
        if isinstance(result, str):
            failed[server.config.name] = result
            continue
        for tool in (to_langchain_tool(server, tool, hop) for tool in result):
            if tool.name in tools:
                raise _two_of_one_name(tool.name, tools[tool.name], tool)
            tools[tool.name] = tool
    made = McpTools(tools.values(), failed)

    async def states() -> dict[str, bool]:
        up = await hop.run(lambda: _all_up(servers))
        return {server.config.name: state for server, state in zip(servers, up, strict=True)}

    made.states = states
    return made


async def _all_up(servers: list[Server]) -> list[bool]:
    # A server that was down from the start may answer by now, but its tools are not offered.
    return await asyncio.gather(*(server.is_up() for server in servers))


async def _no_servers() -> dict[str, bool]:
    return {}


def _two_of_one_name(name: str, first: McpTool, second: McpTool) -> ConfigError:
    servers = [str((tool.metadata or {})["mcp_server"]) for tool in (first, second)]
    return ConfigError(
        f"MCP servers {servers[0]!r} and {servers[1]!r} both have a tool named {name!r}; give one of them a "
        f"'tool_prefix', e.g. {{'tool_prefix': '{servers[1]}_'}}."
    )
