"""Opens one session with one server, and closes it in the same task.

The SDK's context managers must be exited in the task that entered them. That task owns the connection: it opens the
session, waits, and closes it. Calls run in the tasks of their callers and only exchange messages with the session.

The SDK does not expose the id of a call's request, whether the request was passed to the transport, or that the server
closed the connection. Wrapped streams between the session and the transport detect all three.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any, TypeVar

import anyio
import mcp.types as types
from langchain_core.tools import ToolException
from mcp import McpError
from mcp.client.session import ClientSession, ElicitationFnT
from mcp.shared.context import RequestContext
from mcp.shared.session import ProgressFnT

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.integrations.mcp import messages
from graph_agent.integrations.mcp.client_session import McpSession
from graph_agent.integrations.mcp.connections import ServerConfig
from graph_agent.integrations.mcp.message_streams import CallerRequests, IncomingTap, OutgoingTap, current_requests
from graph_agent.integrations.mcp.stdio import Incoming, Outgoing
from graph_agent.integrations.mcp.suspended import Asker, Questions
from graph_agent.integrations.mcp.tool_list import list_tools
from graph_agent.integrations.mcp.transports import ServerLog, open_transport
from graph_agent.integrations.mcp.watched_http import HttpWatch

T = TypeVar("T")


logger = get_logger("graph_agent.mcp")

_GRACE_S = 0.2
"""Seconds that an answer which arrived before the session's end has to reach its caller."""
_CLOSE_S = 10.0
"""Seconds after which a session that is closing is cancelled; the SDK kills a stdio server after four."""
_CANCEL_NOTIFY_S = 5.0
"""Maximum seconds for sending a cancellation to a server."""
_STRAY_GRACE_S = 1.0
"""Seconds to wait for a reply after a line that is not a message, before the running calls fail."""


class ServerConnection:
    """One session with an MCP server that is opening, open or ended; it is never reopened. Construction starts the
    opening.

    Args:
        config: The validated connection.
        elicit: Answers the server's questions; None to pass them to the calls' askers, unless the connection refuses.
        context: Context variables for handling the server's own requests; must not belong to a single call.
        on_tools: Called with the connection after each change of `tools` that the server announces.
    """

    def __init__(
        self,
        config: ServerConfig,
        elicit: ElicitationFnT | None,
        context: Context,
        on_tools: Callable[[ServerConnection], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.tools: dict[str, types.Tool] = {}
        """Name → definition of the tools listed last."""
        self.capabilities = types.ServerCapabilities()
        """The server's capabilities; set when the session has opened."""
        self.changes_tools = False
        """Whether the server announces tool changes; set when the session has opened."""
        self.roots: Sequence[types.Root] | None = config.roots
        """The folders offered to the server; None if none are offered."""
        self.failure: str | None = None
        """Why the session could not be opened; None if it could, or is still opening."""
        self.opened: asyncio.Future[None] = loop.create_future()
        """Resolved once, when the session is open or `failure` is set."""
        self.ended: asyncio.Future[str] = loop.create_future()
        """Resolved with the reason when the session cannot be used any more."""
        self._config = config
        self._elicit = elicit
        self._on_tools = on_tools
        self._changed = False
        self.relisting: asyncio.Task[None] | None = None
        """The task that lists the tools again after an announced change; None while there is none."""
        self._stray = ""
        """The newest line that was no message, for the reason of a failed start; empty if there is none."""
        self._session: McpSession | None = None
        self._log = ServerLog(config.name)
        self._stop = asyncio.Event()
        self._calls: set[CallerRequests] = set()
        self._questions = Questions()
        self._retired = False
        """Whether no further call may begin."""
        # The SDK does not clean up after a cancelled process start, so the start, of milliseconds, is not cancelled.
        self._may_cancel = config.transport != "stdio"
        self._notifications: set[asyncio.Task[None]] = set()
        self._timer = loop.call_later(config.start_timeout_s, self._on_connect_timeout)
        self._owner = loop.create_task(self._own(), name=f"mcp-{config.name}", context=context)

    @property
    def usable(self) -> bool:
        """Whether a new call may use the session, once it is open: it has not failed, ended or been replaced."""
        return self.failure is None and not self.ended.done() and not self._retired

    @property
    def closed(self) -> bool:
        """Whether all resources of the session are released."""
        return self._owner.done()

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        on_progress: ProgressFnT | None,
        meta: dict[str, Any] | None = None,
        asked_by: tuple[str, Asker] | None = None,
    ) -> types.CallToolResult:
        """Call a tool and return its result; cancelling this notifies the server.

        Args:
            name: The tool's name.
            arguments: Its arguments.
            on_progress: Receives the progress of the call; None to request none.
            meta: The `_meta` of the request.
            asked_by: Id of the agent's session, and a function that answers the server's questions during the call;
                None if no user can be asked.

        Raises:
            LostCallError: No answer will arrive.
            ToolException: The server answered with a protocol error; `UrlsRequiredError` if the user must open
                addresses first.
            McpCallError: The answer cannot be parsed (`may_have_run` is True), or the server no longer offers the tool.
        """
        if name not in self.tools and not self.ended.done():
            known = ", ".join(sorted(self.tools)) or "nothing"
            raise messages.McpCallError(
                f"MCP server {self._config.name!r} no longer offers {name!r}; it offers: {known}.", may_have_run=False
            )
        call = CallerRequests()
        if asked_by is not None:
            call.asking.session_id, call.asking.asker = asked_by
        self._questions.begin(call.asking)
        try:
            return await self.request(
                lambda session: session.call_tool(name, arguments, progress_callback=on_progress, meta=meta), call
            )
        except McpError as error:
            if messages.is_unreadable(error.error):
                raise messages.McpCallError(
                    f"MCP server {self._config.name!r} gave no readable reply to {name!r}: {error.error.message}. "
                    "It is not known whether the call took effect.",
                    may_have_run=True,
                ) from None
            if error.error.code == types.URL_ELICITATION_REQUIRED:
                raise messages.UrlsRequiredError(self._config.name, error.error) from error
            raise ToolException(f"MCP server {self._config.name!r}: {error}") from error
        except (RuntimeError, ValueError) as error:
            # The SDK found that the answer, or its structured content, does not match the server's schema.
            raise messages.McpCallError(
                f"{name!r} ran, but the answer of MCP server {self._config.name!r} is malformed: {error}",
                may_have_run=True,
            ) from error
        finally:
            self._questions.end(call.asking, answered=call.answered)

    async def request(self, work: Callable[[ClientSession], Awaitable[T]], call: CallerRequests | None = None) -> T:
        """Run `work`, which sends one request after the other, and return its result; cancelling notifies the server.

        Args:
            work: Receives the session.
            call: Records the requests; None for a new one.

        Raises:
            LostCallError: The session has ended, or no answer will arrive.
            Exception: The errors of `work`.
        """
        session, call = self._session, call or CallerRequests()
        if session is None or self.ended.done():
            raise messages.LostCallError(messages.Loss(self._reason(), may_have_run=False))
        self._calls.add(call)
        token = current_requests.set(call)
        # The task copies the context when it is created, so that exactly its requests belong to the call.
        answer = asyncio.ensure_future(work(session))
        current_requests.reset(token)
        try:
            outcomes: set[asyncio.Future[Any]] = {answer, call.lost, self.ended}
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
            if self.ended.done() and not answer.done():
                await asyncio.wait({answer}, timeout=_GRACE_S)
            return self._outcome(call, answer)
        finally:
            self._calls.discard(call)
            call.answered = answer.done()
            if not answer.done():
                answer.cancel()
                self._notify_cancelled(session, call)
            self._end_when_drained()

    def retire(self) -> None:
        """Accept no further calls, and close the session when the running ones have ended."""
        self._retired = True
        self._end_when_drained()

    async def close(self) -> None:
        """End the session, failing its calls, and wait until it is closed.

        It is cancelled after ten seconds, and left alone after ten more.
        """
        self._end("it was closed")
        if not self.opened.done():
            self._abandon("it was closed")
        await asyncio.wait({self._owner}, timeout=_CLOSE_S)
        if not self._owner.done():
            self._owner.cancel()
            await asyncio.wait({self._owner}, timeout=_CLOSE_S)

    async def _own(self) -> None:
        """Open the session, keep it open until it ends, and close it; the body of the task that owns the session.

        Never raises.

        A failure before the session is open is stored in `failure`, with the end of the server's standard error; a
        later one ends the session. Both, and a cancellation, are logged at DEBUG. Tasks for notifications and for
        listing tools are cancelled at the end.
        """
        watch = HttpWatch(self._on_loss, self._on_server_request)
        try:
            async with AsyncExitStack() as stack:
                streams = await stack.enter_async_context(open_transport(self._config, watch, self._log))
                self._may_cancel = True
                if self.failure is not None:
                    return
                await self._open(stack, *streams)
                try:
                    await self._stop.wait()
                finally:
                    # Before the transport closes, since closing may take seconds and callers wait.
                    self._end("the connection broke")
        except asyncio.CancelledError:
            # Not raised again: the canceller wants the session closed, which it now is.
            logger.debug("MCP server %r: the session was cancelled", self._config.name)
        except Exception as error:
            logger.debug("MCP server %r: the session failed", self._config.name, exc_info=True)
            # A request that belongs to no call is one that opens the session.
            if not self.opened.done():
                reason = self._reason() if self.ended.done() else messages.root_cause(error)
                self._fail(reason, await asyncio.to_thread(self._log.read_to_end))
        finally:
            self._fail("it was cancelled while starting")
            self._end("the connection broke")
            for task in [*self._notifications, *filter(None, [self.relisting])]:
                task.cancel()

    async def _open(self, stack: AsyncExitStack, incoming: Incoming, outgoing: Outgoing) -> None:
        """Begin the protocol over two streams, list the tools, set `capabilities` and `tools`, and resolve `opened`.

        The callbacks for questions, sampling and roots are set only as far as the settings permit.
        """
        options = dict(self._config.options.get("session_kwargs", {}))
        if self._elicit is not None:
            options["elicitation_callback"] = self._elicit
        elif self._config.elicitation != "refuse":
            options["elicitation_callback"] = self._ask
        if self._config.sampling == "model":
            options["sampling_callback"] = self._sample
        if self.roots is not None:
            options["list_roots_callback"] = self._list_roots
        closed = functools.partial(self._end, "it closed the connection")
        taps = IncomingTap(incoming, closed, self._on_unreadable), OutgoingTap(outgoing)
        session = await stack.enter_async_context(McpSession(*taps, on_tools_changed=self._on_tools_changed, **options))
        self.capabilities = capabilities = (await session.initialize()).capabilities
        # Listed at every opening, so that a call detects a removed tool and the SDK has the output schemas.
        self._session = session
        if capabilities.tools is not None:
            self.tools = await list_tools(session)
            self.changes_tools = bool(capabilities.tools.listChanged)
        self._timer.cancel()
        if not self.opened.done():
            self.opened.set_result(None)

    def _outcome(self, call: CallerRequests, answer: asyncio.Future[T]) -> T:
        """Return the result of a caller's work, or raise its error.

        Raises `LostCallError` if no answer can arrive, or if the error is that of the closed connection.
        """
        broken = messages.Loss(self._reason(), may_have_run=call.sent)
        if not answer.done():
            raise messages.LostCallError(call.lost.result() if call.lost.done() else broken)
        try:
            return answer.result()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise messages.LostCallError(broken) from None
        except McpError as error:
            if self.ended.done() and error.error.code == types.CONNECTION_CLOSED:
                raise messages.LostCallError(broken) from None
            raise

    def _notify_cancelled(self, session: McpSession, call: CallerRequests) -> None:
        """Notify the server, in a task, that a caller's newest request was cancelled; a failure is logged at DEBUG.

        Does nothing if the request was not sent, is lost, or the session has ended.
        """
        if call.request_id is None or not call.sent or call.lost.done() or self.ended.done():
            return
        params = types.CancelledNotificationParams(requestId=call.request_id, reason="The caller cancelled the call.")
        notification = types.ClientNotification(types.CancelledNotification(params=params))

        async def send() -> None:
            """Send the notification within `_CANCEL_NOTIFY_S` seconds; a failure is logged."""
            try:
                async with asyncio.timeout(_CANCEL_NOTIFY_S):
                    await session.send_notification(notification)
            except (TimeoutError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
                logger.debug("MCP server %r was not notified of a cancelled call: %r", self._config.name, error)

        task = asyncio.create_task(send())
        self._notifications.add(task)
        task.add_done_callback(self._on_notified)

    def _on_notified(self, task: asyncio.Task[None]) -> None:
        """Forget a notification that was sent, and close the session if it waits for that."""
        self._notifications.discard(task)
        self._end_when_drained()

    def _end_when_drained(self) -> None:
        """End the session if it was retired, and no call and no notice of a cancellation is still under way."""
        if self._retired and not self._calls and not self._notifications:
            self._end("it was replaced")

    def _on_loss(self, request_id: types.RequestId, loss: messages.Loss) -> None:
        """Pass on that a request will not be answered: to its caller, or as a failure of the opening.

        `loss` is why, and whether the request may have run. Does nothing for an unknown request once the session is
        open.
        """
        for call in self._calls:
            if call.request_id == request_id:
                if not call.lost.done():
                    call.lost.set_result(loss)
                return
        if not self.opened.done():
            self._abandon(loss.reason)

    def _on_server_request(self, server_request: types.RequestId, request_id: types.RequestId) -> None:
        """Record that a request of the server belongs to the call in whose response it arrived.

        Does nothing if no running call has the id.

        Args:
            server_request: Id of the server's request.
            request_id: Id of the call's own request.
        """
        for call in self._calls:
            if call.request_id == request_id:
                self._questions.note_origin(server_request, call.asking)

    async def _ask(
        self, context: RequestContext[ClientSession, Any], params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a question of the server by the call that it belongs to."""
        return await self._questions.ask(context.request_id, params)

    async def _sample(
        self, context: RequestContext[ClientSession, Any], params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        """Answer a sampling request, one for the agent's model, by the call that it belongs to."""
        return await self._questions.sample(context.request_id, params)

    async def _list_roots(self, context: RequestContext[ClientSession, Any]) -> types.ListRootsResult:
        """Return the folders that are offered to the server."""
        return types.ListRootsResult(roots=list(self.roots or ()))

    async def announce_roots(self, roots: Sequence[types.Root]) -> None:
        """Change the folders that are offered (roots), and notify the server if a session is open that can be used."""
        self.roots = roots
        if self._session is not None and self.usable:
            await self._session.send_roots_list_changed()

    def _on_unreadable(self, error: messages.UnreadableError) -> None:
        """Log the message and fail all calls that were sent, because it may be the reply to any of them.

        If the line was probably output of the server's program and not a message, the calls fail only after a second,
        or not at all if the connection ignores such lines. Before the connection is open, the message is
        only logged, and kept for the error of a timeout.
        """
        logger.warning("MCP server %r: %s", self._config.name, error.reason)
        if not self.opened.done():
            self._stray = error.reason
            return
        if error.stray and self._config.stray_output == "ignore":
            return
        sent = [call for call in self._calls if call.sent]
        fail = functools.partial(self._fail_calls, sent, error)
        # After a stray line the reply may follow immediately, so the calls fail after a delay.
        asyncio.get_running_loop().call_later(_STRAY_GRACE_S if error.stray else 0, fail)

    def _fail_calls(self, calls: list[CallerRequests], error: messages.UnreadableError) -> None:
        """Fail those of some calls that still wait, as the message may have been their reply."""
        fix = "; print to stderr instead, or set 'stray_output: ignore' for the server" if error.stray else ""
        for call in calls:
            if not call.lost.done():
                call.lost.set_result(messages.Loss(error.reason + fix, may_have_run=True, session_gone=False))

    def _on_tools_changed(self) -> None:
        """List the tools again, in a task, unless the connection pins them."""
        self._changed = not self._config.pin_tools
        if self._changed and self.relisting is None:
            self.relisting = asyncio.create_task(self._relist(), name=f"mcp-{self._config.name}-tools")

    async def _relist(self) -> None:
        """List the tools again until no change is announced meanwhile, and report each list with `_on_tools`.

        A failure, such as a list that takes too long, is logged and keeps the old tools.
        """
        assert self._session is not None
        try:
            while self._changed:
                self._changed = False
                async with asyncio.timeout(self._config.connect_timeout_s):
                    self.tools = await list_tools(self._session)
                self._on_tools(self)
        except Exception as error:  # noqa: BLE001 - listing may fail in any way; the old tools stay on offer
            logger.warning("MCP server %r: its changed tools could not be listed: %r", self._config.name, error)
        finally:
            self.relisting = None

    def _on_connect_timeout(self) -> None:
        """Give up the opening, because it has taken too long."""
        stray = f"; {self._stray}" if self._stray else ""
        self._abandon(f"it did not come up within {self._config.start_timeout_s:g} s{stray}")

    def _abandon(self, reason: str) -> None:
        """Record why the opening failed, with the last lines of the server's log; cancel it if `_may_cancel` is set."""
        self._fail(reason, self._log.last_lines())
        if self._may_cancel:
            self._owner.cancel()

    def _fail(self, reason: str, stderr: str = "") -> None:
        """Record why the opening failed, with the end of the standard error; does nothing once it has opened."""
        self._timer.cancel()
        if not self.opened.done():
            self.failure = f"{reason}; the end of its stderr: {stderr}" if stderr else reason
            self.opened.set_result(None)

    def _end(self, reason: str) -> None:
        """Record why the session has ended, and begin to close it; only the first reason counts."""
        self._stop.set()
        if not self.ended.done():
            self.ended.set_result(reason)

    def _reason(self) -> str:
        """Return why the session has ended; `the connection broke` if no reason is recorded."""
        return self.ended.result() if self.ended.done() else "the connection broke"
