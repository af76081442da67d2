"""Open MCP servers side by side and keep them open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import mcp.types as types
from langchain_core.tools import BaseTool
from langchain_mcp_adapters.sessions import Connection

from graph_agent.errors import ConfigError, McpServerError
from graph_agent.events.types import IN_HISTORY
from graph_agent.mcp.connections import check_connections
from graph_agent.mcp.hop import Hop
from graph_agent.mcp.server import Server
from graph_agent.mcp.session import ElicitationHandler, elicitation_for
from graph_agent.mcp.tools import McpTool, to_langchain_tool

logger = logging.getLogger("graph_agent.mcp")

_SETTLE_S = 5.0
"""Seconds that a plan waits for the tools that a server has announced."""


class McpTools(list[BaseTool]):
    """The tools of the servers that came up; `failed` maps each of the others to its error.

    The list changes in place when a server announces other tools (`tools/list_changed`) or has other ones after it
    was opened again, except for servers with `pin_tools`. An agent that was given all of it offers what it holds at
    each plan.
    """

    def __init__(self, tools: Iterable[BaseTool] = (), failed: Mapping[str, str] | None = None) -> None:
        super().__init__(tools)
        self.failed: dict[str, str] = dict(failed or {})
        self.states: Callable[[], Awaitable[dict[str, bool]]] = _no_servers
        """Whether each server can be called now, by its name; may be awaited in any event loop."""
        self.version = 0
        """Number of changes since the servers were opened."""
        self.announces = False
        """Whether some server announces changes of its tools."""
        self._opening: _Opening | None = None

    @property
    def pending(self) -> bool:
        """Whether a server has announced a change that is not yet in the list."""
        return self._opening is not None and any(server.relisting for server in self._opening.servers)

    async def settle(self) -> None:
        """Wait for pending changes, five seconds at most; may be awaited in any event loop."""
        if self._opening is not None:
            await self._opening.settle()


@asynccontextmanager
async def open_mcp_tools(
    connections: Mapping[str, Connection | dict[str, Any]],
    on_elicitation: ElicitationHandler | None = None,
    auth: httpx.Auth | Mapping[str, httpx.Auth] | None = None,
) -> AsyncIterator[McpTools]:
    """Open every server once, side by side, and give their tools for the length of the block.

    `connections` maps server names to connections as langchain-mcp-adapters has them: `transport` is `stdio`
    (`command`, `args`, `env`, `cwd`), `streamable_http` or `sse` (`url`, `headers`, `timeout` in seconds, …). Two keys
    more: `connect_timeout_s`, the seconds a server has to come up (default 30), and `tool_prefix`, text before the
    names of its tools (`True` for `"<server>_"`, default none). Three more bound what a server may do: `pin_tools`
    (keep the tools of the start, default False), `max_message_bytes` (default 16 MiB) and `stray_output` (`"error"` or
    `"ignore"`, for lines of a stdio server that are no messages, default `"error"`).

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
    opening = _Opening()
    for config in check_connections(connections, auth):
        opening.servers.append(Server(config, elicitation_for(config.name, on_elicitation), opening.on_tools))
    servers = opening.servers
    try:
        found = await asyncio.gather(*(_tools_or_error(server) for server in servers))
        yield opening.collect(found)
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


class _Opening:
    """The servers of one block, and the list of their tools. Belongs to the loop that opens them."""

    def __init__(self) -> None:
        self.servers: list[Server] = []
        self.tools = McpTools()
        self._hop = Hop()
        self._made: dict[tuple[str, str], tuple[types.Tool, McpTool]] = {}

    def collect(self, found: Sequence[list[types.Tool] | str]) -> McpTools:
        """Fill the list. Raises `ConfigError` for two tools of one name."""
        for server, result in zip(self.servers, found, strict=True):
            if isinstance(result, str):
                self.tools.failed[server.config.name] = result
        listed: dict[str, McpTool] = {}
        for tool in self._current():
            if tool.name in listed:
                raise _two_of_one_name(tool.name, listed[tool.name], tool)
            listed[tool.name] = tool
        self.tools.extend(listed.values())
        self.tools.announces = any(server.changes_tools for server in self.servers)
        self.tools.states = self._states
        self.tools._opening = self
        return self.tools

    def on_tools(self, server: Server) -> None:
        """Take in the changed tools of a server; the second of two tools of one name is left out."""
        listed: dict[str, McpTool] = {}
        for tool in self._current():
            if listed.setdefault(tool.name, tool) is not tool:
                logger.warning("%s The second one is left out.", _two_of_one_name(tool.name, listed[tool.name], tool))
        self.tools[:] = listed.values()
        self.tools.version += 1
        logger.info("MCP server %r has other tools now: %s", server.config.name, ", ".join(server.tools) or "none")

    async def settle(self) -> None:
        """Wait until the servers' announced changes are listed, five seconds at most."""

        async def wait() -> None:
            if tasks := [task for server in self.servers if (task := server.relisting) is not None]:
                await asyncio.wait(tasks, timeout=_SETTLE_S)

        await self._hop.run(wait)

    def _current(self) -> Iterator[McpTool]:
        for server in self.servers:
            for name, tool in server.tools.items():
                made = self._made.get((server.config.name, name))
                if made is None or made[0] != tool:
                    made = tool, to_langchain_tool(server, tool, self._hop, self.tools)
                    self._made[server.config.name, name] = made
                yield made[1]

    async def _states(self) -> dict[str, bool]:
        up = await self._hop.run(lambda: _all_up(self.servers))
        return {server.config.name: state for server, state in zip(self.servers, up, strict=True)}


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
