"""A server on loopback that answers, and refuses, as a provider of models does.

with Emulator(row, lambda request: Reply("Hello!")) as emulator:
    ...  # a client of emulator.url
assert emulator.refusals == []
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.providers.exchange import Answer, Brain, Fault, Hold, Raw, Refusal, Reply, Request
from tests.providers.row import Row

_POLL_S = 0.01
_HELD_S = 30


@dataclass
class Exchange:
    """A request, and what became of it."""

    request: Request
    refusal: Refusal | None = None
    reply: Reply | None = None
    client_closed: bool = False
    """Whether the client closed the connection before the end of the reply."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set when the answer has ended, however it did."""


class Emulator:
    """The server of one row; it listens while the `with` block lasts."""

    def __init__(self, row: Row, brain: Brain) -> None:
        self.row = row
        self.brain = brain
        self.window: int | None = None
        """Tokens of a request above which it is refused as too long; None for no limit."""
        self.exchanges: list[Exchange] = []
        """Every request with a body, in order of arrival."""
        self.paths: list[str] = []
        """Method and path of every request."""
        self.errors: list[BaseException] = []
        """What the brain or the protocol raised."""
        self._lock = threading.Lock()
        emulator = self

        class Handler(_Handler):
            def do_POST(self) -> None:
                # A client that has given up reads no further.
                with suppress(ConnectionError):
                    emulator._serve(self)

            def do_GET(self) -> None:
                with suppress(ConnectionError):
                    emulator._list(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Threads are waited for at the end, so that no socket outlives its test.
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": _POLL_S})
        self._ending = threading.Event()

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address, without a path. Its host is that of the provider, if the row has one."""
        return f"http://{self.row.host or '127.0.0.1'}:{self.port}"

    @property
    def requests(self) -> list[Request]:
        """The requests that were accepted, in order of arrival."""
        return [exchange.request for exchange in self.exchanges if exchange.refusal is None]

    @property
    def refusals(self) -> list[Refusal]:
        """The refusals, in order."""
        return [exchange.refusal for exchange in self.exchanges if exchange.refusal is not None]

    def shown_refusals(self) -> list[str]:
        """Return each refusal as text: rule, status, body, and the end of the refused messages."""
        return [
            f"{exchange.refusal.rule} (HTTP {exchange.refusal.status}): {json.dumps(exchange.refusal.body)[:300]} for "
            f"{json.dumps(exchange.request.body)[-500:]}"
            for exchange in self.exchanges
            if exchange.refusal is not None
        ]

    def __enter__(self) -> Emulator:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _list(self, handler: _Handler) -> None:
        self.paths.append(f"GET {handler.path}")
        answer = self.row.protocol.listing(handler.path, (self.row.model,), self.window)
        handler.answer(answer or Answer(404, b'{"error": {"message": "Not Found"}}'))

    def _serve(self, handler: _Handler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        self.paths.append(f"POST {handler.path}")
        headers = {key.lower(): value for key, value in handler.headers.items()}
        try:
            request = self.row.protocol.parse(handler.path, headers, json.loads(raw) if raw else {})
            with self._lock:
                exchange = Exchange(request)
                self.exchanges.append(exchange)
                outcome = self.row.refusal(request, self.window) or self.brain(request)
            if isinstance(outcome, Fault):
                outcome = self.row.fault(outcome.kind)
            if isinstance(outcome, Refusal):
                exchange.refusal = outcome
                if outcome.status == 200:
                    # Some servers send the body of an error in a stream, or in place of a reply.
                    text = json.dumps(outcome.body).encode()
                    outcome = Raw((b"data: " + text + b"\n\n",), text)
            if isinstance(outcome, Refusal):
                body = outcome.body if isinstance(outcome.body, str) else json.dumps(outcome.body)
                answer = Answer(outcome.status, body.encode(), headers=outcome.headers)
            elif isinstance(outcome, Raw):
                if request.stream:
                    handler.begin_stream(self.row.protocol.stream_type)
                    for event in outcome.events:
                        handler.send_piece(event)
                    handler.end_stream()
                    exchange.done.set()
                    return
                answer = Answer(200, outcome.body)
            else:
                if not self.row.can("reasoning"):
                    outcome = replace(outcome, reasoning="")
                exchange.reply = outcome
                if request.stream and not getattr(self.row.shape, "json_for_stream", False):
                    events = self.row.protocol.stream(outcome, request, self.row.shape)
                    self._stream(handler, exchange, events)
                    exchange.done.set()
                    return
                answer = self.row.protocol.whole(outcome, request, self.row.shape)
                if outcome.hold is not None and not self._held(handler, outcome.hold):
                    exchange.client_closed = True
                    exchange.done.set()
                    return
        except ConnectionError:
            raise
        except BaseException as error:
            self.errors.append(error)
            handler.answer(Answer(500, json.dumps({"error": {"message": f"The emulator failed: {error!r}"}}).encode()))
            raise
        handler.answer(answer)
        exchange.done.set()

    def _stream(self, handler: _Handler, exchange: Exchange, events: Iterator[bytes]) -> None:
        reply = exchange.reply
        assert reply is not None
        handler.begin_stream(self.row.protocol.stream_type)
        try:
            for number, event in enumerate(events):
                if number == reply.cut_after or (reply.unfinished and self.row.protocol.finish_mark in event):
                    handler.close_connection = True
                    handler.connection.shutdown(socket.SHUT_RDWR)
                    return
                if number == reply.error_after:
                    handler.send_piece(self.row.protocol.error)
                    break
                if reply.hold is not None and number == reply.hold.after and not self._held(handler, reply.hold):
                    exchange.client_closed = True
                    return
                handler.send_piece(event)
                if self._ending.wait(reply.pace_s):
                    return
            handler.end_stream()
        except ConnectionError:
            exchange.client_closed = True

    def _held(self, handler: _Handler, hold: Hold) -> bool:
        """Wait for the hold to end; return False if the client has closed the connection before."""
        hold.reached.set()
        until = time.monotonic() + _HELD_S
        while not hold.go_on.is_set() and not self._ending.is_set() and time.monotonic() < until:
            readable, _, _ = select.select([handler.connection], [], [], _POLL_S)
            if readable:
                try:
                    if not handler.connection.recv(1, socket.MSG_PEEK):
                        return False
                except ConnectionError:
                    return False
        return not self._ending.is_set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {"content-type": answer.content_type, **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)
        self.close_connection = True

    def begin_stream(self, content_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def send_piece(self, piece: bytes) -> None:
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass
