"""Opens MCP servers concurrently and keeps them open."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import mcp.types as types
from langchain_core.tools import BaseTool
from langchain_mcp_adapters.sessions import Connection

from graph_agent.base._internal.failure_log import IN_HISTORY, get_logger
from graph_agent.base.errors import ConfigError, McpServerError, did_you_mean
from graph_agent.integrations.mcp.client_session import ElicitationHandler, elicitation_for
from graph_agent.integrations.mcp.connections import check_connections, read_roots
from graph_agent.integrations.mcp.loop_bridge import LoopBridge
from graph_agent.integrations.mcp.resources import listing_tools
from graph_agent.integrations.mcp.server import McpServer
from graph_agent.integrations.mcp.tools import McpTool, to_langchain_tool

logger = get_logger("graph_agent.mcp")

_SETTLE_S = 5.0
"""Maximum seconds that a plan waits for tool changes that a server has announced."""


class McpTools(list[BaseTool]):
    """The tools of all servers that started, in a list that changes in place.

    It changes when a server announces changed tools (`tools/list_changed`) or lists different tools after a reconnect,
    except for servers with `pin_tools`. An agent created with the whole list offers its current tools at each plan.
    """

    def __init__(self, tools: Iterable[BaseTool] = (), failed: Mapping[str, str] | None = None) -> None:
        super().__init__(tools)
        self.failed: dict[str, str] = dict(failed or {})
        """Name of each server that did not start → error."""
        self.version = 0
        """Number of changes of the list since the servers were opened."""
        self.lists_change = False
        """Whether any server announces tool changes."""
        self._opening: _Opening | None = None

    @property
    def pending(self) -> bool:
        """Whether a server has announced a change that is not in the list yet."""
        return self._opening is not None and any(server.relisting for server in self._opening.servers)

    async def set_roots(self, server: str, folders: Sequence[str | Path]) -> None:
        """Change the folders offered to a server that was opened with `roots`, and notify it.

        Raises:
            ConfigError: There is no such server, or it was opened without `roots`.
        """
        if self._opening is not None:
            await self._opening.set_roots(server, folders)

    async def states(self) -> dict[str, bool]:
        """Return server name → whether the server can be called now; from any event loop.

        Sessions that have ended are opened again; so are servers that did not start, if the list has any tool. Empty
        for a list that `open_mcp_tools` did not make.
        """
        return await self._opening.states() if self._opening is not None else {}

    async def wait_for_changes(self) -> None:
        """Wait at most five seconds for announced changes to be listed; from any event loop."""
        if self._opening is not None:
            await self._opening.wait_for_changes()


@asynccontextmanager
async def open_mcp_tools(
    connections: Mapping[str, Connection | dict[str, Any]],
    on_elicitation: ElicitationHandler | None = None,
    auth: httpx.Auth | Mapping[str, httpx.Auth] | None = None,
) -> AsyncIterator[McpTools]:
    """Open all servers at once, and keep their tools available inside the block; yields the list of tools.

    A server that fails to start is logged as a WARNING and added to `.failed`; the tools of the others are available.
    `.states()` opens it again, which `/ready` of a server awaits. A server that dies later is reopened by the next
    call. A lost call is retried once if it certainly did not run, or if its tool is marked as read-only or idempotent;
    otherwise it raises `McpCallError`. Tools can be called from other event loops and threads while the loop that
    opened them runs.

    A stdio server's environment is PATH, HOME and similar basics, and the connection's `env`, in which `${NAME}` is
    replaced. The command `python` means the running interpreter. The server's stderr is logged at DEBUG by
    `graph_agent.mcp`.

    Args:
        connections: Server name → connection as in langchain-mcp-adapters: `transport` is `stdio` (`command`, `args`,
            `env`, `cwd`), `streamable_http` or `sse` (`url`, `headers`, `timeout` in seconds, …). Additional keys:
            `connect_timeout_s`, the seconds for a server to start (default 30); `tool_prefix`, text before the names of
            its tools (`True` for `"<server>_"`, default none); `pin_tools`, to ignore later tool changes (default
            False); `required`, to fail without the server (default False); `max_message_bytes` (default 16 MiB); and
            `stray_output`, `"error"` or `"ignore"` for lines of a stdio server that are not messages (default
            `"error"`). The guide `docs/guides/mcp.md` has the others.
        on_elicitation: Answers a server's question during a call: `async (context, params) -> ElicitResult`, with an
            optional third parameter `CallbackContext`. By default a question is an interrupt of the agent.
        auth: For HTTP servers whose connection has none: one for all of them, or server name → `httpx.Auth`.

    Raises:
        ConfigError: A connection is invalid, before any server starts, or two tools have the same name.
        McpServerError: A `required` server does not start.
    """
    opening = _Opening()
    for config in check_connections(connections, auth):
        opening.servers.append(McpServer(config, elicitation_for(config.name, on_elicitation), opening.on_tools))
    servers = opening.servers
    try:
        found = await asyncio.gather(*(_tools_or_error(server) for server in servers))
        yield opening.collect(found)
    finally:
        # Shielded: processes must end even if a cancelled scope ends the block.
        with anyio.CancelScope(shield=True):
            # At the same time, since each may take seconds to end its process.
            await asyncio.gather(*(server.close() for server in servers))


async def _tools_or_error(server: McpServer) -> list[types.Tool] | str:
    """Open a server, and return its tools, or the text of the error for which it did not start.

    The error is logged. For a `required` server, `McpServerError` is raised instead.
    """
    try:
        return await server.open()
    except McpServerError as error:
        if server.config.required:
            raise McpServerError(f"{error} It is required; start it, or remove 'required' from it.") from None
        logger.warning("%s Its tools are unavailable.", error, extra=IN_HISTORY)
        return str(error)


class _Opening:
    """The servers of one `open_mcp_tools` block and their tools; belongs to the event loop that opens them."""

    def __init__(self) -> None:
        self.servers: list[McpServer] = []
        self.tools = McpTools()
        self._bridge = LoopBridge()
        self._listing: dict[str, list[McpTool]] = {}
        """Server name → its tools for resources and prompts."""
        self._converted: dict[tuple[str, str], tuple[types.Tool, McpTool]] = {}
        """Server and tool name → the tool's definition, and the LangChain tool made from it."""

    def collect(self, found: Sequence[list[types.Tool] | str]) -> McpTools:
        """Fill the list of tools and its `failed` from the results of opening, and return the list.

        Raises `ConfigError` if the names of two tools are equal or differ only in white space or case. `found` has, for
        each server, its tools or the error for which it did not start.
        """
        for server, result in zip(self.servers, found, strict=True):
            if isinstance(result, str):
                self.tools.failed[server.config.name] = result
        self.tools[:], conflicts = self._distinct()
        if conflicts:
            raise conflicts[0]
        # A server that has failed may still start later, and then adds its tools.
        self.tools.lists_change = any(server.changes_tools for server in self.servers) or bool(self.tools.failed)
        self.tools._opening = self
        return self.tools

    def on_tools(self, server: McpServer) -> None:
        """Update the list, in place, after a server's tools have changed, and count the change in `version`.

        A tool whose name is taken is left out with a warning. The server is removed from `failed`.
        """
        self.tools[:], conflicts = self._distinct()
        for conflict in conflicts:
            logger.warning("%s The second one is ignored.", conflict)
        self.tools.version += 1
        # A server that did not start may be opened later by `states()`.
        self.tools.failed.pop(server.config.name, None)
        logger.info("MCP server %r changed its tools: %s", server.config.name, ", ".join(server.tools) or "none")

    async def wait_for_changes(self) -> None:
        """Wait at most five seconds until the changes that servers have announced are listed.

        Raises `McpCallError` if the event loop that opened the servers has ended.
        """

        async def wait() -> None:
            """Wait for the tasks that list tools."""
            if tasks := [task for server in self.servers if (task := server.relisting) is not None]:
                await asyncio.wait(tasks, timeout=_SETTLE_S)

        await self._bridge.run(wait)

    async def set_roots(self, name: str, folders: Sequence[str | Path]) -> None:
        """Change a server's offered folders, and notify it.

        Raises `ConfigError` if the server is unknown or was opened without `roots`, or a folder is invalid, and
        `McpCallError` if the event loop that opened the servers has ended.
        """
        servers = {server.config.name: server for server in self.servers}
        if name not in servers:
            raise ConfigError(f"There is no MCP server {name!r}; {did_you_mean(name, servers)}")
        roots = read_roots(name, list(folders))
        await self._bridge.run(lambda: servers[name].set_roots(roots))

    def _distinct(self) -> tuple[list[McpTool], list[ConfigError]]:
        """Return the current tools with distinct names, and an error for each tool whose name is taken."""
        listed: dict[str, McpTool] = {}
        conflicts = []
        for tool in self._current():
            first = listed.setdefault(_comparable(tool.name), tool)
            if first is not tool:
                conflicts.append(_equal_names(first, tool))
        return list(listed.values()), conflicts

    def _current(self) -> Iterator[McpTool]:
        """Yield the LangChain tools of all servers, including those that list and read resources and prompts.

        A tool is converted at the first call of this method, and again after its definition has changed.
        """
        for server in self.servers:
            for name, tool in server.tools.items():
                converted = self._converted.get((server.config.name, name))
                # Unchanged tools are not converted again, because that resolves all references of a schema.
                if converted is None or converted[0] != tool:
                    converted = tool, to_langchain_tool(server, tool, self._bridge, self.tools)
                    self._converted[server.config.name, name] = converted
                yield converted[1]
            if server.capabilities.resources is not None or server.capabilities.prompts is not None:
                if server.config.name not in self._listing:
                    self._listing[server.config.name] = listing_tools(server, self._bridge, self.tools)
                yield from self._listing[server.config.name]

    async def states(self) -> dict[str, bool]:
        """Return server name → whether the server can be called; reopens servers whose session has ended.

        A server that did not start is opened, too, if the list had a tool at any time. Raises `McpCallError` if the
        event loop that opened the servers has ended.
        """
        # An agent without any tool of this list does not follow it, and would not offer the tools of a late server.
        may_open = bool(self._converted)

        async def check() -> list[bool]:
            """Check all servers at the same time."""
            return await asyncio.gather(*(server.is_up(may_open=may_open) for server in self.servers))

        up = await self._bridge.run(check)
        return {server.config.name: state for server, state in zip(self.servers, up, strict=True)}


def _comparable(name: str) -> str:
    """Return a name without white space and case, and with full-width letters and the like as plain ones: differences
    that models and reviewers would not see.
    """
    return "".join(unicodedata.normalize("NFKC", name).split()).casefold()


def _equal_names(first: McpTool, second: McpTool) -> ConfigError:
    """Return (not raise) the error for two tools whose names cannot be distinguished; it explains how to rename one."""
    servers = [str((tool.metadata or {})["mcp_server"]) for tool in (first, second)]
    if servers[0] == servers[1]:
        return ConfigError(
            f"MCP server {servers[0]!r} has two tools, {first.name!r} and {second.name!r}, whose names differ only in "
            "white space or case; rename one of them in the server."
        )
    names = f"a tool named {first.name!r}"
    if first.name != second.name:
        names = f"a tool of one name but for white space or case ({first.name!r}, {second.name!r})"
    return ConfigError(
        f"MCP servers {servers[0]!r} and {servers[1]!r} both have {names}; give one of them a 'tool_prefix', e.g. "
        f"{{'tool_prefix': '{servers[1]}_'}}."
    )
