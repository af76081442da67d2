"""Serves an agent over standard input and output, to the program that started this process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from io import TextIOWrapper
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp import McpError, types
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from graph_agent.otel import instrument_from_env, is_switched_on
from graph_agent.runs.registry import use_daemon_threads_of_own_loop
from graph_agent.server.admission.gate import Caller
from graph_agent.server.admission.worker_folder import limits_of
from graph_agent.server.chat.handler import Runs
from graph_agent.server.host import AgentSource, open_host
from graph_agent.server.mcp.agent_tool import AgentTool
from graph_agent.server.mcp.protocols import StatelessRequest, check_request, error_response, is_stateless, sdk_server
from graph_agent.server.monitoring import Metrics
from graph_agent.server.settings import settings_from


async def serve_stdio(source: AgentSource, db: str | None = None) -> None:
    """Serve an agent until the client closes standard input.

    Raises:
        ConfigError: If the agent or its database cannot be opened, or a setting of the environment is invalid.
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
    """Take standard input and output for the protocol, so that a tool that prints or reads cannot break it.

    What this process and its children print goes to standard error; they read an empty standard input.
    """
    sys.stdout.flush()
    received, sent, empty = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    stdin = TextIOWrapper(os.fdopen(received, "rb"), encoding="utf-8", errors="replace")
    stdout = TextIOWrapper(os.fdopen(sent, "wb"), encoding="utf-8")
    try:
        yield anyio.wrap_file(stdin), anyio.wrap_file(stdout)
    finally:
        os.dup2(sent, 1)


class _Connection:
    """One client; requests without a handshake are answered here, all others by the SDK."""

    def __init__(self, agent: AgentTool, write: ObjectSendStream[SessionMessage]) -> None:
        self._agent = agent
        self._write = write
        self._calls: dict[Any, asyncio.Task[None]] = {}
        """Id of a running request without a handshake → its task."""

    async def serve(self, read: ObjectReceiveStream[SessionMessage | Exception]) -> None:
        """Serve the client until it closes its end."""
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
                self._agent.closing.set()
                for task in self._calls.values():
                    task.cancel()
                await asyncio.gather(*self._calls.values(), return_exceptions=True)

    def _cancelled(self, message: Any) -> bool:
        """Cancel the request that a notification names; return whether it is one of `_calls`."""
        if not isinstance(message, types.JSONRPCNotification) or message.method != "notifications/cancelled":
            return False
        task = self._calls.get((message.params or {}).get("requestId"))
        return task is not None and task.cancel()

    async def _copy(self, answered: ObjectReceiveStream[SessionMessage]) -> None:
        async for each in answered:
            await self._write.send(each)

    async def _respond(self, request: types.JSONRPCRequest) -> None:
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
        await self._write.send(SessionMessage(types.JSONRPCMessage.model_validate(message)))
