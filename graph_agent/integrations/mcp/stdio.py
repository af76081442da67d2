"""Opens a server in a child process: one JSON-RPC message per line over standard input and output.

The SDK's client buffers a line without a limit and ends the session at an undecodable byte. This one refuses a line
that is too long while it arrives, and continues after an unreadable one. Processes are started and ended as in the SDK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TextIO

import anyio
import anyio.lowlevel
import mcp.client.stdio as sdk
from anyio.abc import ByteReceiveStream, ByteSendStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import StdioServerParameters
from mcp.shared.message import SessionMessage

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.text import json_line
from graph_agent.integrations.mcp import messages

logger = get_logger("graph_agent.mcp")

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
"""Messages from a server, and exceptions for unreadable ones."""
Outgoing = MemoryObjectSendStream[SessionMessage]
"""Messages to a server."""

_CHUNK = 65_536
"""Bytes that are read at once."""
_EXIT_S = 2.0
"""Seconds that a server has to exit after its input is closed, as in the SDK."""


@asynccontextmanager
async def open_stdio(
    parameters: StdioServerParameters, errlog: TextIO, max_bytes: int
) -> AsyncIterator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """Start a server process and connect to it; end the process on exit.

    On exit the process is asked to end by the end of its input, and killed with its children after `_EXIT_S` seconds.

    Args:
        parameters: Command, environment and encoding of the process.
        errlog: Receives the process's standard error.
        max_bytes: Maximum bytes of one line.

    Yields:
        Streams of the messages from and to the server. An unreadable line arrives as an error reply to its request, or
        as an `UnreadableError` if the request is unknown.

    Raises:
        NotStartedError: The process cannot be started.
    """
    # Private to the SDK: its handling of processes on Windows and of ending a process with its children.
    try:
        process = await sdk._create_platform_compatible_process(
            command=sdk._get_executable_command(parameters.command),
            args=parameters.args,
            env={**sdk.get_default_environment(), **(parameters.env or {})},
            errlog=errlog,
            cwd=parameters.cwd,
        )
    except OSError as error:
        raise messages.NotStartedError(_start_failure(error, parameters)) from error
    assert process.stdin is not None
    assert process.stdout is not None
    # Without a buffer, so that a server that writes faster than it is read waits, and memory stays bounded.
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    async with arrived, incoming, outgoing, to_send, anyio.create_task_group() as tasks, process:
        tasks.start_soon(_receive, process.stdout, arrived, parameters, max_bytes)
        tasks.start_soon(_send, process.stdin, to_send, parameters)
        try:
            yield incoming, outgoing
        finally:
            # By MCP's specification, a server is asked to exit by the end of its input, and ended only if it does not.
            with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                await process.stdin.aclose()
            with anyio.move_on_after(_EXIT_S) as waiting:
                await process.wait()
            if waiting.cancelled_caught:
                await sdk._terminate_process_tree(process)
            tasks.cancel_scope.cancel()


def _start_failure(error: OSError, parameters: StdioServerParameters) -> str:
    """Return why a process could not be started, with the connection key and the fix."""
    command, folder = parameters.command, parameters.cwd
    if isinstance(error, FileNotFoundError | NotADirectoryError) and folder is not None and not Path(folder).is_dir():
        return f"cwd={str(folder)!r}: there is no such folder"
    if isinstance(error, FileNotFoundError):
        return f"command={command!r}: there is no such program; install it, or use its full path"
    return f"command={command!r}: {error.strerror or error}"


async def _receive(
    stdout: ByteReceiveStream,
    arrived: MemoryObjectSendStream[SessionMessage | Exception],
    parameters: StdioServerParameters,
    max_bytes: int,
) -> None:
    """Pass on the messages in a process's output until it ends or the session is closed; then close `arrived`.

    A line that is unreadable, or longer than `max_bytes`, is passed on as an error reply or an exception.
    """
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async with arrived:
            async for line in _lines(stdout, max_bytes):
                await arrived.send(_message(line, parameters))


def _message(line: bytes | messages.UnreadableError, parameters: StdioServerParameters) -> SessionMessage | Exception:
    """Return the message in a line; for an unreadable line, an error reply to the request whose reply it is.

    An `UnreadableError` is returned if the request is unknown.
    """
    try:
        if isinstance(line, messages.UnreadableError):
            raise line
        return SessionMessage(messages.read_message(line, parameters.encoding, parameters.encoding_error_handler))
    except messages.UnreadableError as error:
        return messages.replacement_for(error) or error


async def _lines(stdout: ByteReceiveStream, max_bytes: int) -> AsyncIterator[bytes | messages.UnreadableError]:
    """Yield the lines of a process's output, as bytes without their ends; blank ones are left out.

    For a line of more than `max_bytes`, yields an `UnreadableError` as soon as it exceeds them, and skips the rest. A
    last line without an end is dropped, as it was cut off.
    """
    # Joined once per line: adding each chunk to one `bytes` would copy a long line again and again.
    parts: list[bytes] = []
    size, refused = 0, False
    while True:
        try:
            chunk = await stdout.receive(_CHUNK)
        except anyio.EndOfStream:
            return
        first, *rest = chunk.split(b"\n")
        for index, piece in enumerate((first, *rest)):
            if index:
                if not refused and (line := b"".join(parts)).strip():
                    yield line
                parts, size, refused = [], 0, False
            size += len(piece)
            if refused:
                continue
            parts.append(piece)
            if size > max_bytes:
                yield messages.too_long(b"".join(parts)[:_CHUNK], max_bytes)
                parts, refused = [], True


async def _send(
    stdin: ByteSendStream, to_send: MemoryObjectReceiveStream[SessionMessage], parameters: StdioServerParameters
) -> None:
    """Write messages to a process's input, one JSON line each, until the session or the input is closed."""
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async with to_send:
            async for message in to_send:
                text = json_line(message.message.model_dump_json(by_alias=True, exclude_none=True))
                await stdin.send(f"{text}\n".encode(parameters.encoding, parameters.encoding_error_handler))
