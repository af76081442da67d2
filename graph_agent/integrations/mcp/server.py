"""Provides a usable session for the calls of one MCP server: reconnects, and retries lost calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, TypeVar

import mcp.types as types
from mcp import ClientSession
from mcp.client.session import ElicitationFnT
from mcp.shared.session import ProgressFnT

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.errors import ConfigError, McpServerError
from graph_agent.integrations.mcp.connections import ServerConfig
from graph_agent.integrations.mcp.messages import Loss, LostCallError, McpCallError
from graph_agent.integrations.mcp.server_connection import ServerConnection
from graph_agent.integrations.mcp.suspended import Asker, SuspendedCalls

T = TypeVar("T")
logger = get_logger("graph_agent.mcp")


class McpServer:
    """A server whose session is reopened after a failure; belongs to the event loop in which it is created.

    A lost call is retried once, on a new session, if it certainly did not run or may run twice. Concurrent calls that
    find the session lost share one new session.

    Args:
        config: The validated connection.
        elicit: Answers the server's questions; None to make them interrupts, if the connection allows it.
        on_tools: Called when `tools` has changed after the first opening; never with `pin_tools`.
    """

    def __init__(
        self,
        config: ServerConfig,
        elicit: ElicitationFnT | None,
        on_tools: Callable[[McpServer], None] = lambda server: None,
    ) -> None:
        self.config = config
        self.tools: dict[str, types.Tool] = {}
        """Name → definition of the tools listed last; empty before the first session."""
        self.capabilities = types.ServerCapabilities()
        """The server's capabilities; empty before the first session."""
        self.changes_tools = False
        """Whether the server announces tool changes and these are applied."""
        self.suspended = SuspendedCalls(config.answer_timeout_s)
        """Calls that wait for a user's answer."""
        self.asks_people = elicit is None and config.elicitation != "refuse"
        """Whether the server's questions become interrupts."""
        self.samples = config.sampling == "model"
        """Whether the server's requests to a model are answered."""
        self.roots = config.roots
        """The folders that are offered to the server; None if none are offered."""
        self._on_tools = on_tools
        self._elicit = elicit
        # Captured once: the server's own requests must not be handled in the context of the call that happens to
        # reconnect.
        self._context = copy_context()
        self._connection: ServerConnection | None = None
        self._connections: set[ServerConnection] = set()
        self._open = False
        self._closed = False

    async def open(self) -> list[types.Tool]:
        """Open the first session, set `tools` and `capabilities`, and return the server's tools.

        Raises `McpServerError` if the server does not start.
        """
        connection = await self._usable_connection()
        self.tools, self.capabilities = connection.tools, connection.capabilities
        self.changes_tools = connection.changes_tools and not self.config.pin_tools
        self._open = True
        return list(connection.tools.values())

    async def call(
        self,
        tool: types.Tool,
        arguments: dict[str, Any],
        on_progress: ProgressFnT | None,
        meta: dict[str, Any] | None = None,
        asked_by: tuple[str, Asker] | None = None,
    ) -> types.CallToolResult:
        """Call a tool, on a new session if the old one has ended, and return the result.

        Args:
            tool: The tool's definition.
            arguments: Its arguments.
            on_progress: Receives the progress of the call; None to request none.
            meta: The `_meta` of the request.
            asked_by: Id of the agent's session, and a function that answers the server's questions during the call;
                None if no user can be asked.

        Raises:
            McpCallError: The server will not answer the call, or cannot be reached.
            ToolException: The server answered with a protocol error.
        """
        return await self._send(
            lambda connection: connection.call(tool.name, arguments, on_progress, meta, asked_by),
            tool.name,
            repeatable=is_repeatable(tool),
        )

    async def request(self, name: str, work: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Run `work`, which sends requests that only read, on a new session if the old one ended; return its result.

        Args:
            name: Name of the tool for which this is done, for errors.
            work: Receives the session. It is run again after a loss.

        Raises:
            McpCallError: The server will not answer, or cannot be reached.
            McpError: The server answered with an error.
        """
        return await self._send(lambda connection: connection.request(work), name, repeatable=True, reads=True)

    async def _send(
        self, send: Callable[[ServerConnection], Awaitable[T]], name: str, *, repeatable: bool, reads: bool = False
    ) -> T:
        """Send with `send` over a usable session; after a loss, once more over a new session if that is safe.

        It is safe if the request certainly had no effect, or may be sent twice. If only the request was lost and its
        session still works, it is not sent again, because it would be refused again.

        Args:
            send: Sends over a connection.
            name: Name of the tool, for errors.
            repeatable: Whether it may be sent twice.
            reads: Whether it certainly changes nothing, so that a loss has no unknown effect. Does not allow a
                repetition.

        Raises:
            McpCallError: The request was lost and not sent again, was lost twice, or the server cannot be reached;
                `may_have_run` states whether it may have had an effect.
        """
        first_loss: Loss | None = None
        while True:
            try:
                connection = await self._usable_connection()
            except McpServerError as error:
                ran = first_loss is not None and first_loss.may_have_run and not reads
                raise McpCallError(f"{error} The next call tries again.", may_have_run=ran) from None
            try:
                return await send(connection)
            except LostCallError as error:
                loss = error.loss
            if loss.session_gone:
                self._retire(connection, loss.reason)
            # A session that still works would refuse the same request again.
            may_repeat = loss.session_gone and (repeatable or not loss.may_have_run)
            if first_loss is not None or not may_repeat or self._closed:
                may_have_run = loss.may_have_run and not reads
                raise McpCallError(self._explain(name, loss, reads=reads), may_have_run=may_have_run)
            first_loss = loss

    @property
    def relisting(self) -> asyncio.Task[None] | None:
        """The task that lists the tools again after an announced change; None while there is none."""
        return self._connection.relisting if self._connection is not None else None

    async def is_up(self, *, may_open: bool) -> bool:
        """Return whether the server can be called now; a session that has ended is reopened first.

        A server that has not started is opened, and its tools are added, if `may_open`; otherwise False is returned for
        it. False also if opening fails.
        """
        try:
            if self._open:
                await self._usable_connection()
            elif may_open:
                await self.open()
                self._on_tools(self)
        except McpServerError:
            return False
        return self._open

    async def set_roots(self, roots: tuple[types.Root, ...]) -> None:
        """Change the folders offered to the server, and notify it.

        Raises:
            ConfigError: The server was opened without `roots`, so it was not announced that they may change.
        """
        if self.config.roots is None:
            raise ConfigError(
                f"MCP server {self.config.name!r} was opened without 'roots'; set it, at least to an empty list."
            )
        self.roots = roots
        if self._connection is not None:
            await self._connection.announce_roots(roots)

    async def close(self) -> None:
        """Close all sessions at once; running and suspended calls fail."""
        self._closed = True
        self.suspended.close()
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _usable_connection(self) -> ServerConnection:
        """Return an open connection: the current one, or a new one if that cannot be used.

        Callers at the same time share the opening. Raises `McpServerError` if it cannot be opened, or the server was
        closed. Changed tools of the connection are taken over.
        """
        if self._closed:
            raise McpServerError(f"MCP server {self.config.name!r} was closed: its `async with` block has ended.")
        connection = self._connection
        if connection is None or not connection.usable:
            connection = self._connection = self._new_connection()
        # Shielded: callers share the opening, and a cancelled caller must not cancel it for the others.
        await asyncio.shield(connection.opened)
        if connection.failure is not None:
            raise McpServerError(f"MCP server {self.config.name!r} cannot be reached: {connection.failure}.")
        self._update_tools(connection)
        return connection

    def _update_tools(self, connection: ServerConnection) -> None:
        """Take over the tools that a connection lists; if they differ from those before, call `on_tools`.

        Does nothing before the server is open, and with `pin_tools`.
        """
        # The identity check suffices for most calls: a connection replaces its mapping only when it lists again.
        if not self._open or connection.tools is self.tools or self.config.pin_tools:
            return
        changed, self.tools = connection.tools != self.tools, connection.tools
        if changed:
            self._on_tools(self)

    def _new_connection(self) -> ServerConnection:
        """Start a new connection; the old ones remain until they are closed."""
        connection = ServerConnection(self.config, self._elicit, self._context.copy(), self._update_tools)
        connection.roots = self.roots
        # Earlier connections are kept until they are closed, so that `close` waits for them.
        self._connections = {connection, *(old for old in self._connections if not old.closed)}
        connection.ended.add_done_callback(lambda ended: self._on_ended(connection, ended.result()))
        return connection

    def _on_ended(self, connection: ServerConnection, reason: str) -> None:
        """Retire a connection that has ended by itself, so that the next call opens another.

        Does nothing if the server was closed, or if the connection never opened; in that case the failure is raised
        where it is opened.
        """
        if not self._closed and connection.opened.done() and connection.failure is None:
            self._retire(connection, reason)

    def _retire(self, connection: ServerConnection, reason: str) -> None:
        """Let a connection end after its running calls.

        If it is the current one, log the reason; the next call then opens a new one.
        """
        if connection is self._connection:
            self._connection = None
            logger.warning(
                "MCP server %r: the session ended: %s; the next call opens a new one", self.config.name, reason
            )
        connection.retire()

    def _explain(self, tool: str, loss: Loss, *, reads: bool) -> str:
        """Return the error text for a lost call of `tool`: what happened, and whether the call may have taken effect.

        With `reads`, the call only reads, so that no effect is mentioned.
        """
        server = f"MCP server {self.config.name!r}"
        if not loss.may_have_run:
            return f"{server} did not take the call ({loss.reason}); {tool!r} has not run."
        what = "the session ended" if loss.session_gone else "no readable reply came"
        effect = "" if reads else "; it may have taken effect"
        return f"{server}: {what} while {tool!r} was running ({loss.reason}){effect}."


def is_repeatable(tool: types.Tool) -> bool:
    """Whether a call may be made twice, because its tool is marked as read-only or idempotent."""
    marks = tool.annotations
    return marks is not None and bool(marks.readOnlyHint or marks.idempotentHint)
