"""Opens the transport of a validated connection, as a pair of message streams."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from threading import Thread
from typing import Any, cast

import httpx
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.yaml_files import expand_known
from graph_agent.integrations.mcp.connections import ServerConfig
from graph_agent.integrations.mcp.stdio import Incoming, Outgoing, open_stdio
from graph_agent.integrations.mcp.watched_http import HttpWatch, WatchedClient

logger = get_logger("graph_agent.mcp")

TIMEOUT_S = 30.0
"""Default seconds for a request over HTTP."""
READ_TIMEOUT_S = 300.0
"""Default seconds without any data in a response."""
_KEPT_LINES = 5
"""Number of lines of a server's standard error that are kept."""


class ServerLog:
    """Reads a stdio server's standard error: logs it at DEBUG, and keeps the last five lines for error messages.

    `server` is the name of the server, with which each record begins.
    """

    def __init__(self, server: str) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._server = server
        self._reader: Thread | None = None

    def open(self) -> int:
        """Start reading; return the file descriptor that the server writes to, which the caller must close."""
        read_end, write_end = os.pipe()
        # A thread, since not every platform can read pipes on the event loop.
        self._reader = Thread(target=self._read, args=(read_end,), name=f"mcp-stderr-{self._server}", daemon=True)
        self._reader.start()
        return write_end

    def read_to_end(self) -> str:
        """Return the last lines after the server has ended; blocks at most half a second until all output is read."""
        if self._reader is not None:
            self._reader.join(timeout=0.5)
        return self.last_lines()

    def last_lines(self) -> str:
        """Return the last lines read so far; empty if there are none."""
        return "\n".join(self._lines)

    def _read(self, pipe: int) -> None:
        """Read a pipe to its end, in a thread: log each line at DEBUG, and keep its first 500 characters for errors."""
        with os.fdopen(pipe, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                # A long line, such as one of base64, would fill the error message.
                self._lines.append(line.rstrip()[:500])
                logger.debug("%s: %s", self._server, line.rstrip())


@asynccontextmanager
async def open_transport(
    config: ServerConfig, watch: HttpWatch, log: ServerLog
) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Connect to a server; on exit disconnect and, for stdio, end its process.

    Args:
        config: The validated connection.
        watch: Called for HTTP requests that will not be answered, and for requests of the server.
        log: Receives the standard error of a stdio server.

    Raises:
        Exception: The transport's error.
    """
    if config.transport == "stdio":
        async with _stdio(config, log) as streams:
            yield streams
    elif config.transport == "sse":
        async with _sse(config, watch) as streams:
            yield streams
    else:
        async with _streamable_http(config, watch) as streams:
            yield streams


@asynccontextmanager
async def _stdio(config: ServerConfig, log: ServerLog) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Start a server's process, connect to it, and end it on exit; raise `NotStartedError` if that fails.

    The commands `python` and `python3` run this process's interpreter. The process receives only the variables in `env`
    and basics such as PATH, so that no secret of the environment leaks.
    """
    options: Any = config.options
    command = options["command"]
    parameters = StdioServerParameters(
        # A Python server runs in the agent's environment, not with the first interpreter in PATH.
        command=sys.executable if command in ("python", "python3") and sys.executable else command,
        args=list(options.get("args", ())),
        # The SDK adds PATH, HOME and similar basics; nothing else of our environment, so no secret leaks.
        env={key: _expand(value) for key, value in options.get("env", {}).items()},
        cwd=options.get("cwd"),
        encoding=options.get("encoding", "utf-8"),
        encoding_error_handler=options.get("encoding_error_handler", "strict"),
    )
    async with AsyncExitStack() as stack:
        # Our copy of the write end is closed after the start, so that the log ends with the server.
        with os.fdopen(log.open(), "w") as stderr:
            streams = await stack.enter_async_context(open_stdio(parameters, stderr, config.max_message_bytes))
        yield streams


@asynccontextmanager
async def _sse(config: ServerConfig, watch: HttpWatch) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Connect to a server over HTTP with server-sent events, and disconnect on exit; raise the transport's errors."""
    options: Any = config.options

    def watched(
        headers: dict[str, str] | None = None, timeout: httpx.Timeout | None = None, auth: httpx.Auth | None = None
    ) -> httpx.AsyncClient:
        """Return the HTTP client of the transport, wrapped in a `WatchedClient`."""
        make = options.get("httpx_client_factory", httpx.AsyncClient)
        client = make(headers=headers, timeout=timeout, auth=auth)
        return cast("httpx.AsyncClient", WatchedClient(client, watch, config.max_message_bytes))

    async with sse_client(
        options["url"],
        headers=options.get("headers"),
        timeout=options.get("timeout", TIMEOUT_S),
        sse_read_timeout=_read_timeout_s(config),
        httpx_client_factory=watched,
        auth=options.get("auth"),
    ) as streams:
        yield streams


@asynccontextmanager
async def _streamable_http(config: ServerConfig, watch: HttpWatch) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Connect to a server over streamable HTTP, and disconnect on exit; raise the transport's errors.

    Unless the option `terminate_on_close` is False, the session on the server is ended on exit.
    """
    options: Any = config.options
    timeout = httpx.Timeout(options.get("timeout", TIMEOUT_S), read=_read_timeout_s(config))
    client = options.get("httpx_client_factory", httpx.AsyncClient)(
        headers=options.get("headers"), timeout=timeout, auth=options.get("auth")
    )
    async with (
        WatchedClient(client, watch, config.max_message_bytes) as watched,
        streamable_http_client(
            options["url"],
            http_client=cast("httpx.AsyncClient", watched),
            terminate_on_close=options.get("terminate_on_close", True),
        ) as (incoming, outgoing, _),
    ):
        yield incoming, outgoing


def _read_timeout_s(config: ServerConfig) -> float:
    """Return the seconds without data in a response after which it counts as lost."""
    # The stream of a call is silent while its question waits for a person, unless the server sends pings.
    timeout_s: float = config.options.get("sse_read_timeout", max(READ_TIMEOUT_S, config.answer_timeout_s))
    return timeout_s


def _expand(value: str) -> str:
    """Replace references to environment variables, such as `${HOME}`; one without a value is kept, with a warning."""
    expanded, missing = expand_known(value)
    if missing is not None:
        logger.warning("An MCP server's env refers to %s, which is not set", missing)
    return expanded
