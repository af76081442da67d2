"""Reads and writes the messages of ACP: JSON-RPC, one message a line, on standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Hashable
from typing import Any, BinaryIO

from acp import RequestError

from graph_agent.base._internal.sync_bridge import call_in_thread

_NO_ANSWERS = "The client has closed its end of the connection, so that it cannot answer."


def take_stdio() -> StdioTransport:
    """Return a transport over standard input and output, which no other code of the process can use from now on.

    Code that reads input gets none, also in child processes; what it prints goes to standard error.
    """
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return StdioTransport(stdin, stdout)


class StdioTransport:
    """Exchanges JSON-RPC messages with one client over two streams; implements the transport of the package `acp`.

    After the end of the input, running requests of the client are still answered, but requests to the client fail,
    because no response can arrive.

    Args:
        stdin: Stream of the client's messages, one JSON object a line.
        stdout: Stream for the messages to the client.
    """

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._writing = asyncio.Lock()
        self._received: set[Hashable] = set()
        """Ids of the client's requests that have no response yet."""
        self._sent: set[Hashable] = set()
        """Ids of the requests to the client that have no response yet."""
        self._changed = asyncio.Event()
        """Set when a message was sent, which may answer a request."""
        self._ended = False

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message of the client; None after the end of the input.

        Blank lines are skipped. A line that is not a JSON-RPC message is answered with an error, and the next one is
        read. After the end of the input, wait until every request of the client is answered or a request to the client
        is open. Then return an error response for each open request to the client, one per call, and None once there
        is no such request left. Raises `ConnectionError` if an error for a faulty line cannot be written.
        """
        while not self._ended:
            # A blocking read would stop the runs.
            line = await call_in_thread(self._stdin.readline)
            self._ended = not line
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                await self.send(_fault(RequestError(-32700, f"The line is no JSON: {error}.")))
                continue
            if not _is_message(message):
                fault = "The line is no JSON-RPC message: an object with a method, or with the id of a request."
                await self.send(_fault(RequestError(-32600, fault)))
                continue
            id_ = message.get("id")
            if "method" not in message:
                self._sent.discard(id_)
            elif "id" in message:
                self._received.add(id_)
            return dict(message)
        while not self._sent and self._received:
            self._changed.clear()
            await self._changed.wait()
        if not self._sent:
            return None
        return _fault(RequestError(-32603, _NO_ANSWERS), self._sent.pop())

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message as one line of JSON. The write runs in a thread, and concurrent calls write one after the
        other.

        A request counts as open until the client answers it. A response ends the request of the client that it answers,
        even if writing fails. Raises `ConnectionError` if writing fails, or if the message is a request and the
        client's input has ended.
        """
        if "method" in message and "id" in message:
            if self._ended:
                raise ConnectionError(_NO_ANSWERS)
            self._sent.add(message["id"])
        line = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        try:
            # In a thread, because a client that reads slowly must not block the runs.
            async with self._writing:
                await call_in_thread(self._write, line)
        except OSError as error:
            raise ConnectionError(f"The client does not read any more: {error}.") from error
        finally:
            if "method" not in message:
                self._received.discard(message.get("id"))
            self._changed.set()

    async def close(self) -> None:
        """Do nothing: the streams are open as long as the process."""

    def _write(self, line: bytes) -> None:
        """Write the bytes of a message, and flush the stream."""
        self._stdout.write(line)
        self._stdout.flush()


def _is_message(value: Any) -> bool:
    """Return whether a JSON value is a JSON-RPC request, notification or response: an object with a method, or with an
    id, which is a text, an integer or null.
    """
    if not isinstance(value, dict) or not isinstance(value.get("id"), str | int | None):
        return False
    return isinstance(value["method"], str) if "method" in value else "id" in value


def _fault(error: RequestError, id_: Hashable = None) -> dict[str, Any]:
    """Return the JSON-RPC error response to the request `id_`; None if the id is unknown."""
    return {"jsonrpc": "2.0", "id": id_, "error": error.to_error_obj()}
