"""Mounts `/mcp` in the application: MCP's streamable HTTP, for clients with a handshake and without one.

Clients of versions with a handshake (`initialize`) are served by the MCP SDK, others here. The module also serves an
agent over standard input and output, to the program that started this process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from io import TextIOWrapper
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp import McpError, types
from mcp.server import streamable_http as _transport
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.message import SessionMessage
from mcp.shared.version import SUPPORTED_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from graph_agent.base._internal.text import json_line
from graph_agent.integrations.otel import instrument_from_env, is_switched_on
from graph_agent.interfaces.server.admission.body import ReplayedBody
from graph_agent.interfaces.server.admission.gate import Caller, RequestLimits, admit_requests, admitted_caller
from graph_agent.interfaces.server.admission.worker_folder import limits_of
from graph_agent.interfaces.server.agent_source import AgentSource
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.host import open_host
from graph_agent.interfaces.server.mcp.agent_tool import AgentTool
from graph_agent.interfaces.server.mcp.sdk_server import sdk_server
from graph_agent.interfaces.server.mcp.stateless import (
    STATUS_OF_ERROR,
    StatelessRequest,
    check_request,
    error_response,
    is_stateless,
)
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.interfaces.server.settings import MCP_PATH, settings_from
from graph_agent.interfaces.server.sse import EventStream, comment, frame, with_json_lines
from graph_agent.session.activity import use_daemon_threads_of_own_loop

_MOST_WAITING = 256
"""Maximum messages that are queued for a slow client of a call. When the queue is full, the call waits."""

_sdk_logger = logging.getLogger(_transport.__name__)


def _is_no_ended_stream(record: logging.LogRecord) -> bool:
    """Filter of the SDK's logger: return False, which drops the record, for the one that the SDK writes at the regular
    end of each session.
    """
    # The SDK logs the end of each session as a failure of its event stream.
    return not (record.exc_info and isinstance(record.exc_info[1], anyio.ClosedResourceError))


@asynccontextmanager
async def mcp_routes(
    runs: Runs, limits: RequestLimits, streams: RequestLimits, tasks: RequestLimits, *, shared: bool
) -> AsyncIterator[list[BaseRoute]]:
    """Serve the open agent to MCP clients within the context; yields the routes, and ends the clients' sessions on
    exit.

    When the server stops, forms that wait for a reviewer end at once, and active requests may take the drain time.

    Args:
        runs: The runs of this process, with which the sessions are drained and closed.
        limits: Limits of requests per caller.
        streams: Limits of the streams over which clients with a handshake receive the server's requests.
        tasks: Limits of active runs per caller.
        shared: Whether other processes share the port. The next request of a client may then reach another process, so
            that clients with a handshake have no MCP session, and cannot be shown forms.
    """
    _sdk_logger.addFilter(_is_no_ended_stream)
    agent = AgentTool(runs, tasks)
    manager = StreamableHTTPSessionManager(
        sdk_server(agent), stateless=shared, max_request_body_size=runs.host.settings.max_body_bytes
    )
    endpoint = _Endpoint(agent, manager)
    loop, opened, stopped = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    async def run_manager() -> None:
        """Keep the SDK's sessions open until the stop; then withdraw forms, wait for active requests, and end the
        sessions.

        Requests get `drain_s` seconds if the server drains, and otherwise none.
        """
        async with manager.run():
            opened.set()
            await stopped.wait()
            agent.closing.set()
            # A run that drains ends first, so that its client receives the reason.
            await endpoint.idle(runs.host.settings.drain_s if runs.draining else 0)

    # In a task of its own: the SDK's task group must be left by the task that entered it.
    running = asyncio.create_task(run_manager(), name="MCP sessions")

    async def close() -> None:
        """End the sessions, and wait until they have ended."""
        stopped.set()
        await asyncio.wait([running])

    def drain() -> None:
        """Begin to end the sessions; may be called in any thread."""
        loop.call_soon_threadsafe(stopped.set)

    closing = runs.register_closer(close, drain=drain)
    await opened.wait()
    # Requests are admitted like those of the other APIs: the SDK has no keys or limits of ours.
    routes: list[BaseRoute] = [Route(MCP_PATH, endpoint)]
    admit_requests(routes, runs, limits, protocol="MCP", streams=streams)
    try:
        yield routes
    finally:
        await asyncio.shield(closing())


class _Endpoint:
    """The ASGI application of `/mcp`.

    The header `mcp-protocol-version` decides whether the SDK handles a request, or it is handled here as one without a
    handshake.
    """

    def __init__(self, agent: AgentTool, manager: StreamableHTTPSessionManager) -> None:
        self._agent = agent
        self._manager = manager
        self._posts = 0
        """Number of active POST requests."""
        self._idle = asyncio.Event()

    async def idle(self, within_s: float) -> None:
        """Wait until no POST request is active, but at most `within_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._posts:
                    self._idle.clear()
                    await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; while it is a POST, it counts as active for `idle`.

        Line separators of Unicode in event streams are escaped, because some clients split lines at them.
        """
        is_post = scope["method"] == "POST"
        self._posts += is_post
        try:
            await self._respond(scope, receive, with_json_lines(send))
        finally:
            self._posts -= is_post
            self._idle.set()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the SDK, or answer it here if the version in the header `mcp-protocol-version` has no
        handshake.

        Without the header, the SDK handles it. A body that is not UTF-8 is refused with 400. The SDK ties a client's
        session to the key that began it.
        """
        request = Request(scope, receive)
        if request.method == "POST":
            body = await request.body()
            try:
                body.decode()
            except UnicodeDecodeError:
                await _refused(None, types.PARSE_ERROR, "The body is no UTF-8.")(scope, receive, send)
                return
            receive = ReplayedBody(body, receive)
        if request.headers.get("mcp-protocol-version", SUPPORTED_PROTOCOL_VERSIONS[0]) in SUPPORTED_PROTOCOL_VERSIONS:
            # The SDK then lets each session be used with the key that began it only.
            owner = AccessToken(token="", client_id=admitted_caller(request).name, scopes=[])
            await self._manager.handle_request({**scope, "user": AuthenticatedUser(owner)}, receive, send)
        else:
            await (await self._response(request))(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        """Return the response to a request of a protocol version without a handshake.

        Another method than POST has status 405, a notification 202. An invalid request is answered with a JSON-RPC
        error, a call of the tool with a stream of events, any other request with JSON. The code of an error determines
        the status. Raises `InvalidRequestError` if a credential header of a call occurs twice.
        """
        if request.method != "POST":
            return Response(status_code=405, headers={"allow": "POST"})
        try:
            body = await request.json()
        except (ValueError, RecursionError):
            return _refused(None, types.PARSE_ERROR, "The body is no JSON.")
        if isinstance(body, dict) and "method" in body and "id" not in body:
            return Response(status_code=202)  # no notification of a client means anything here
        try:
            message = types.JSONRPCRequest.model_validate(body)
        except ValidationError:
            return _refused(None, types.INVALID_REQUEST, "The body is no JSON-RPC request.")
        try:
            check_request(message, request.headers)
        except McpError as error:
            return JSONResponse(error_response(message.id, error), STATUS_OF_ERROR.get(error.error.code, 200))
        if message.method == "tools/call":
            return self._stream(message, request)
        response = await StatelessRequest(self._agent, message, admitted_caller(request), _drop).response()
        return JSONResponse(response, STATUS_OF_ERROR.get(response.get("error", {}).get("code"), 200))

    def _stream(self, message: types.JSONRPCRequest, request: Request) -> EventStream:
        """Return an event stream with the progress of a call and, as its last event, the JSON-RPC response.

        A comment is sent after `keepalive_s` seconds without an event. If the client closes the stream, the call is
        cancelled; a run whose input has an id continues, because the client may repeat the call. Raises
        `InvalidRequestError` if a credential header occurs twice.
        """
        settings = self._agent.host.settings
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_WAITING)
        credentials = self._agent.host.credentials_of(request)
        caller = admitted_caller(request)
        stateless = StatelessRequest(self._agent, message, caller, queue.put, credentials, aborts=False)

        async def call() -> None:
            """Run the call, and queue its response."""
            # A client cancels a call by closing its response. With an id, it may repeat the call to get the result.
            await queue.put(await stateless.response())

        async def frames() -> AsyncGenerator[str, None]:
            """Run the call in a task, and yield the queued messages as server-sent events, up to the response, with
            comments in pauses.

            If the client leaves before, cancel the call.
            """
            calling = asyncio.create_task(call())
            try:
                sent: dict[str, Any] = {}
                while "id" not in sent:
                    try:
                        async with asyncio.timeout(settings.keepalive_s):
                            sent = await queue.get()
                    except TimeoutError:
                        yield comment("still at work")
                    else:
                        yield frame(sent)
            finally:
                calling.cancel()
                await asyncio.wait([calling])

        return EventStream(frames(), send_timeout_s=settings.send_timeout_s)


def _refused(request_id: Any, code: int, message: str) -> JSONResponse:
    """Return a response with status 400 and a JSON-RPC error; `request_id` is None if the request's id could not be
    read.
    """
    error = McpError(types.ErrorData(code=code, message=message))
    return JSONResponse(error_response(request_id, error), 400)


async def _drop(notification: dict[str, Any]) -> None:
    """Drop a notification, because the response is not a stream."""


async def serve_stdio(source: AgentSource, db: str | None = None) -> None:
    """Serve an agent over standard input and output until the client closes standard input.

    The settings are those of the environment, and telemetry is started if it switches it on. Meanwhile, what tools
    print goes to standard error. Raises `ConfigError` if a setting is invalid, or the agent cannot be opened.

    Args:
        source: The agent.
        db: URL of another database than the agent file's; None for the file's.
    """
    use_daemon_threads_of_own_loop()
    if is_switched_on():
        instrument_from_env()
    settings = settings_from(())
    async with AsyncExitStack() as stack:
        stdin, stdout = stack.enter_context(_protocol_streams())
        host = await stack.enter_async_context(open_host(source, settings, db))
        runs = await stack.enter_async_context(aclosing(Runs(host, Metrics(frozenset(host.tool_names)))))
        agent = AgentTool(runs, limits_of(settings, None)[2])
        read, write = await stack.enter_async_context(stdio_server(stdin, stdout))
        await _Connection(agent, write).serve(read)


@contextmanager
def _protocol_streams() -> Iterator[tuple[anyio.AsyncFile[str], anyio.AsyncFile[str]]]:
    """Reserve standard input and output for the protocol; yields both as text streams.

    So a tool that prints or reads cannot break the protocol: what this process and its children print goes to standard
    error, and they read an empty standard input. Standard output is restored on exit.
    """
    sys.stdout.flush()
    received, sent, empty = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    stdin = TextIOWrapper(os.fdopen(received, "rb"), encoding="utf-8", errors="replace")
    # The protocol requires UTF-8, whatever the locale is.
    stdout = _JsonLines(os.fdopen(sent, "wb"), encoding="utf-8")
    try:
        yield anyio.wrap_file(stdin), anyio.wrap_file(stdout)
    finally:
        os.dup2(sent, 1)


class _JsonLines(TextIOWrapper):
    """Standard output for clients that split lines at any line separator of Unicode.

    Such characters are written as JSON escapes.
    """

    def write(self, text: str, /) -> int:
        """Write JSON text with its line separators escaped; return the number of characters that were written."""
        return super().write(json_line(text))


class _Connection:
    """One client over standard input and output. Requests without a handshake are answered here, others by the SDK.

    Args:
        agent: The agent's tool and sessions.
        write: Sends messages to the client. `serve` closes it.
    """

    def __init__(self, agent: AgentTool, write: ObjectSendStream[SessionMessage]) -> None:
        self._agent = agent
        self._write = write
        self._calls: dict[Any, asyncio.Task[None]] = {}
        """Id of a running request without a handshake → its task."""

    async def serve(self, read: ObjectReceiveStream[SessionMessage | Exception]) -> None:
        """Serve the client until `read` ends, then withdraw open forms, cancel the requests that are still running, and
        wait for them.

        Requests of the stateless protocol run in tasks of their own; a notification that cancels one of them is handled
        here. All other messages go to the SDK's server, whose messages are forwarded to the client.
        """
        server = sdk_server(self._agent)
        forward, forwarded = anyio.create_memory_object_stream[SessionMessage | Exception]()
        answers, answered = anyio.create_memory_object_stream[SessionMessage]()
        # The transport ends when its streams are closed.
        async with self._write, anyio.create_task_group() as group:
            group.start_soon(server.run, forwarded, answers, server.create_initialization_options())
            group.start_soon(self._copy, answered)
            async with forward:
                async for item in read:
                    message = item.message.root if isinstance(item, SessionMessage) else None
                    if isinstance(message, types.JSONRPCRequest) and is_stateless(message):
                        task = asyncio.create_task(self._respond(message))
                        self._calls[message.id] = task
                    elif not self._cancelled(message):
                        await forward.send(item)
                # Waits for a person would keep the process alive after its client has left.
                self._agent.closing.set()
                for task in self._calls.values():
                    task.cancel()
                await asyncio.gather(*self._calls.values(), return_exceptions=True)

    def _cancelled(self, message: Any) -> bool:
        """Return whether a message is a notification that cancels a running request without a handshake, and cancel
        that request.

        Other messages, also cancellations of other requests, are for the SDK.
        """
        if not isinstance(message, types.JSONRPCNotification) or message.method != "notifications/cancelled":
            return False
        # A client may send any JSON value as the id.
        id_ = (message.params or {}).get("requestId")
        task = self._calls.get(id_) if isinstance(id_, str | int) else None
        return task is not None and task.cancel()

    async def _copy(self, answered: ObjectReceiveStream[SessionMessage]) -> None:
        """Forward the SDK's messages to the client until they end; raise anyio's error if its stream is closed."""
        async for each in answered:
            await self._write.send(each)

    async def _respond(self, request: types.JSONRPCRequest) -> None:
        """Answer a request without a handshake as the caller without a name, and forget it.

        An invalid request is answered with a JSON-RPC error.
        """
        try:
            try:
                check_request(request)
                response = await StatelessRequest(self._agent, request, Caller(""), self._send).response()
            except McpError as error:
                response = error_response(request.id, error)
            await self._send(response)
        finally:
            self._calls.pop(request.id, None)

    async def _send(self, message: Mapping[str, Any]) -> None:
        """Send a JSON-RPC message to the client."""
        await self._write.send(SessionMessage(types.JSONRPCMessage.model_validate(message)))
