"""Limits of connections outside of request bodies, in size and time, for both serving commands."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.interfaces.server.process import PARROT, eventually, serving
from tests.support.a2a_process import a2a_process

CARD = b"GET /.well-known/agent-card.json HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /a2a HTTP/1.1\r\nhost: localhost\r\na2a-version: 1.0\r\n"
JSON = POST + b"content-type: application/json\r\n"
CHUNKED = JSON + b"transfer-encoding: chunked\r\n\r\n"
ASK = (
    b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": '
    b'{"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}}'
)
MANY = 69_000_000
"""Bytes that one connection sends."""
GROWTH = 64_000_000
"""Bytes that the process may grow by meanwhile."""


@dataclass
class Server:
    address: tuple[str, int]
    pid: int

    def peak(self) -> int:
        """The most memory that the process has had, in bytes."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found
        return int(found[1]) * 1000

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(self.address, timeout=60) as connection:
            yield connection


@contextmanager
def served(surface: str, folder: Path, *options: str) -> Iterator[Server]:
    if surface == "a2a":
        with a2a_process(folder, "--db", "memory:", *options, agent=PARROT) as (url, process):
            yield Server((httpx.URL(url).host, httpx.URL(url).port or 0), process.pid)
    else:
        with serving(folder, "--db", "memory:", *options) as server:
            yield Server((httpx.URL(server.url).host, httpx.URL(server.url).port or 0), server.process.pid)


@pytest.fixture(scope="module", params=["a2a", "serve"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="module", params=["a2a", "serve"])
def hasty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits for one second only."""
    with served(request.param, tmp_path_factory.mktemp(request.param), "--set", "body_timeout_s=1") as server:
        yield server


def received(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    data = b""
    while more := connection.recv(65_536):
        data += more
    return data


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (CARD, b"a:\r\n" * 25_000),
        (CARD, b"x-name: 0123456789012345678901234567890123456789\r\n" * 2_000),
        (CARD + b"x-name: ", b"v" * 100_000),
        (CARD, b"n" * 100_000),
        (b"GET /", b"v" * 100_000),
        (b"", b"\r\n" * 50_000),
        (CHUNKED + b"2;", b"v" * 100_000),
        (CHUNKED + b"2\r\n{}\r\n0\r\n", b"x-name: 0123456789\r\n" * 5_000),
        (CHUNKED + b"2\r\n{}\r\n0\r\nx-name: ", b"v" * 100_000),
    ],
    ids=["short", "headers", "value", "name", "target", "empty lines", "chunk extension", "trailers", "trailer"],
)
def test_request_heads_are_bounded_with_status_431(server: Server, head: bytes, piece: bytes) -> None:
    before = server.peak()
    with server.connected() as connection:
        connection.sendall(head)
        with suppress(ConnectionError):
            for _ in range(MANY // len(piece)):
                connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        reply = received(connection)

    assert (statuses(reply), b"connection: close" in reply, server.peak() - before < GROWTH) == ([431], True, True)


@pytest.mark.parametrize(("size", "status"), [(60_000, 200), (66_000, 431)])
def test_the_limit_of_headers_is_64_kib(server: Server, size: int, status: int) -> None:
    with server.connected() as connection:
        connection.sendall(CARD + b"connection: close\r\nx-name: " + b"v" * size + b"\r\n\r\n")

        assert statuses(received(connection)) == [status]


def test_headers_behind_an_answered_request_are_bounded(server: Server) -> None:
    before = server.peak()
    with server.connected() as connection:
        connection.sendall(CARD + b"\r\n" + CARD)
        with suppress(ConnectionError):
            for _ in range(MANY // 100_000):
                connection.sendall(b"a:\r\n" * 25_000)
        connection.shutdown(socket.SHUT_WR)
        found = statuses(received(connection))

    assert (found[0], found[1:] in ([], [431]), server.peak() - before < GROWTH) == (200, True, True)


def test_requests_in_a_row_and_bodies_in_small_chunks_are_answered(server: Server) -> None:
    body = ASK + b" " * 20_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with server.connected() as connection:
        connection.sendall(CARD + b"\r\n" + CHUNKED + chunks + b"0\r\n\r\n" + CARD + b"connection: close\r\n\r\n")
        responses = received(connection)

    assert (statuses(responses), b"You said: hi" in responses) == ([200, 200, 200], True)


def test_trailers_are_no_headers(server: Server) -> None:
    trailer = b"content-type: application/json\r\n"
    head = POST + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    with server.connected() as connection:
        connection.sendall(head + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(ASK), ASK, trailer))

        assert statuses(received(connection)) == [415]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_not_kept_and_its_sender_receives_413(server: Server, chunked: bool) -> None:
    before, piece, count = server.peak(), b" " * 1_000_000, 200
    head = CHUNKED if chunked else JSON + b"content-length: %d\r\n\r\n" % (len(piece) * count)
    with server.connected() as connection:
        connection.sendall(head)
        with suppress(ConnectionError):
            for _ in range(count):
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        response = received(connection)

    assert (statuses(response), server.peak() - before < GROWTH) == ([413], True)


@pytest.mark.parametrize(
    ("data", "answers"),
    [(b"", []), (b"GET /", [408]), (CARD, [408]), (b"\r\n", [])],
    ids=["idle", "line", "head", "empty"],
)
def test_half_a_request_is_answered_408_and_an_idle_connection_closed(
    hasty: Server, data: bytes, answers: list[int]
) -> None:
    with hasty.connected() as connection:
        connection.sendall(data)

        assert statuses(received(connection)) == answers


def test_trickling_headers_time_out(hasty: Server) -> None:
    response = b""
    with hasty.connected() as connection:
        connection.sendall(CARD)
        connection.settimeout(0.2)
        while not response:
            connection.sendall(b"a:\r\n")
            with suppress(TimeoutError):
                response = connection.recv(65_536)

    assert statuses(response) == [408]


def test_headers_behind_a_running_request_end_the_connection_after_its_response(tmp_path: Path) -> None:
    go = tmp_path / "go"
    body = ASK.replace(b'"hi"', b'"!call wait_for {\\"file\\": \\"%b\\"}"' % str(go).encode())
    with served("a2a", tmp_path) as server, server.connected() as connection:
        connection.sendall(JSON + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        eventually((tmp_path / "go.pid").exists)
        connection.sendall(CARD)
        with suppress(ConnectionError):
            connection.sendall(b"a:\r\n" * 100_000)
        go.touch()

        assert statuses(received(connection)) == [200]
