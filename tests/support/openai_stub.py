"""A small OpenAI-compatible server on loopback, so that tests meet the real client over real HTTP.

    def test_it(openai_stub: StubFactory) -> None:
        stub = openai_stub("Hello!", Failure(429, "Slow down.", headers={"retry-after": "1"}))
        async with stub.chat_model() as model: ...
        assert stub.bodies[0]["messages"] == [...]

Replies are served in order, one for each request with messages; a callable looks at the request's body and gives the
reply. A stub that has none left answers 400, which no client tries again.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI


@dataclass(frozen=True)
class Reply:
    """A successful completion."""

    text: str = ""
    tool_calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    """Names and arguments, a string as it stands; the ids are `call_1`, `call_2`, … over the stub's life."""
    cut_after: int | None = None
    """Streaming only: close the connection after so many chunks, without an end. None: the stream is whole."""
    error_after: int | None = None
    """Streaming only: send an error event after so many chunks. None: no error."""
    finish: str | None = None
    """The finish reason; None selects `tool_calls` or `stop`, an empty string omits it."""
    refusal: str | None = None
    prompt_tokens: int = 11
    cached_tokens: int | None = None
    """Tokens of the prompt that came from a cache; None to report none."""
    before: Callable[[int], object] | None = field(default=None, compare=False)
    """Called in the stub's thread before each chunk, from 0, of a stream is sent; with 0 before a whole reply."""


@dataclass(frozen=True)
class Failure:
    """An error status with OpenAI's error body."""

    status: int
    message: str = "The stub was told to fail."
    code: str | None = None
    type: str = "invalid_request_error"
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    """Sent instead of OpenAI's error body where it is not None; a string is sent as it stands."""


@dataclass(frozen=True)
class Body:
    """The bytes of an answer with status 200, as they stand."""

    data: bytes
    content_type: str = "text/event-stream"


_ERROR_EVENT = {"error": {"message": "The engine is overloaded.", "type": "server_error", "code": "overloaded"}}

StubReply = str | Reply | Failure | Body
StubFactory = Callable[..., "OpenAIStub"]


@dataclass(frozen=True)
class StubRequest:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]


_KEYS = itertools.count()
"""Numbers of the keys of models, a key for each stub."""


@asynccontextmanager
async def open_chat_model(
    base_url: str, model: str, *, kind: type[ChatOpenAI] = ChatOpenAI, **kwargs: Any
) -> AsyncIterator[ChatOpenAI]:
    """A real `ChatOpenAI` for a server on loopback, with HTTP clients of its own that are closed at the end."""
    # The default clients are shared by the whole process, and would carry connections from loop to loop. Loopback has
    # no certificates to verify, and loading them takes longer than a test.
    sync_client = openai.DefaultHttpxClient(verify=False)
    async_client = openai.DefaultAsyncHttpxClient(verify=False)
    settings = {"base_url": base_url, "api_key": "sk-stub-key", "max_retries": 0, "stream_usage": True, **kwargs}
    try:
        yield kind(model=model, http_client=sync_client, http_async_client=async_client, **settings)
    finally:
        sync_client.close()
        await async_client.aclose()


class OpenAIStub:
    """The server; it listens while the `with` block lasts."""

    def __init__(self, *replies: StubReply | Callable[[dict[str, Any]], StubReply]) -> None:
        self.requests: list[StubRequest] = []
        self.pages: dict[str, Any] = {}
        """Path → the JSON that a GET request receives; any other path is unknown."""
        self._replies = list(replies)
        self._lock = threading.Lock()
        self._calls = 0
        stub = self

        class Handler(_Handler):
            def do_POST(self) -> None:
                # A client that has given up reads no further.
                with suppress(ConnectionError):
                    stub._serve(self)

            def do_GET(self) -> None:
                if self.path in stub.pages:
                    self.send_json(200, stub.pages[self.path], {})
                else:
                    super().do_GET()

        self._key = f"sk-stub-key-{next(_KEYS)}"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Threads are waited for at the end, so that no socket outlives its test.
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def base_url(self) -> str:
        """The address for a client, up to and with `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The requests' bodies, in order of arrival."""
        return [request.body for request in self.requests]

    def serve_from_now(self, *replies: StubReply | Callable[[dict[str, Any]], StubReply]) -> None:
        """Serve these instead of what is left."""
        with self._lock:
            self._replies = list(replies)

    def chat_model(
        self, model: str = "stub-model", *, kind: type[ChatOpenAI] = ChatOpenAI, **kwargs: Any
    ) -> AbstractAsyncContextManager[ChatOpenAI]:
        """A real `ChatOpenAI` that talks to this stub."""
        # What a process learns of an endpoint holds for its address and key, and a later stub may get the same port.
        kwargs.setdefault("api_key", self._key)
        return open_chat_model(kwargs.pop("base_url", self.base_url), model, kind=kind, **kwargs)

    def __enter__(self) -> OpenAIStub:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, handler: _Handler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        body = json.loads(raw) if raw else {}
        request = StubRequest(handler.path, {key.lower(): value for key, value in handler.headers.items()}, body)
        with self._lock:
            self.requests.append(request)
            if body.keys().isdisjoint({"messages", "contents"}):
                # As at a provider; a readiness probe sends such a request.
                reply: Any = Failure(400, "The request has no messages.")
            else:
                reply = self._replies.pop(0) if self._replies else Failure(400, "The stub has no reply left.")
        if handler.path != "/v1/chat/completions" and not isinstance(reply, Body):
            reply = Failure(404, f"Unknown path {handler.path}.")
        if callable(reply):
            reply = reply(body)
        if isinstance(reply, Body):
            handler.send_body(reply)
            return
        if isinstance(reply, Failure):
            error = {"message": reply.message, "type": reply.type, "param": reply.param, "code": reply.code}
            handler.send_json(reply.status, {"error": error} if reply.body is None else reply.body, reply.headers)
            return
        reply = Reply(reply) if isinstance(reply, str) else reply
        message = self._message(reply)
        usage: dict[str, Any] = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": 7}
        usage["total_tokens"] = sum(usage.values())
        if reply.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": reply.cached_tokens}
        head = {"id": f"chatcmpl-{len(self.requests)}", "created": 1, "model": body.get("model", "stub-model")}
        finish = reply.finish if reply.finish is not None else "tool_calls" if reply.tool_calls else "stop"
        if not body.get("stream"):
            if reply.before is not None:
                reply.before(0)
            choice = {"index": 0, "message": message, "finish_reason": finish or None}
            handler.send_json(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage}, {})
            return
        chunks = [
            {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
            for delta, end in [*((delta, None) for delta in _deltas(message)), ({}, finish or None)]
        ]
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        handler.send_events(chunks, reply)

    def _message(self, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.refusal is not None:
            message["refusal"] = reply.refusal
        for name, arguments in reply.tool_calls:
            with self._lock:
                self._calls += 1
                id_ = f"call_{self._calls}"
            raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
            function = {"name": name, "arguments": raw}
            message.setdefault("tool_calls", []).append({"id": id_, "type": "function", "function": function})
        return message


class _Handler(BaseHTTPRequestHandler):
    """Writing of answers; each one ends its connection, so that none is left to close."""

    def do_GET(self) -> None:
        """Answer as a server without a list of models."""
        self.send_json(404, {}, {})

    def send_json(self, status: int, body: Any, headers: dict[str, str]) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self._head(status, {"content-type": "application/json", "content-length": str(len(data)), **headers})
        self.wfile.write(data)

    def send_body(self, body: Body) -> None:
        self._head(200, {"content-type": body.content_type, "content-length": str(len(body.data))})
        self.wfile.write(body.data)

    def send_events(self, chunks: list[dict[str, Any]], reply: Reply) -> None:
        # A stream that is cut is one whose announced length never arrives.
        cut = {} if reply.cut_after is None else {"content-length": "1000000"}
        self._head(200, {"content-type": "text/event-stream", **cut})
        for number, chunk in enumerate(chunks):
            if number == reply.cut_after:
                return
            if reply.before is not None:
                reply.before(number)
            self._event(json.dumps(_ERROR_EVENT if number == reply.error_after else chunk))
        self._event("[DONE]")

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "connection": "close"}.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the tests' output clean."""


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Cut a message as OpenAI streams it: the role, words, then each call's name and its arguments in two halves."""
    yield {"role": "assistant", "content": ""}
    for word in re.findall(r"\s*\S+|\s+", message["content"] or ""):
        yield {"content": word}
    for word in re.findall(r"\s*\S+", message.get("refusal") or ""):
        yield {"refusal": word}
    for index, call in enumerate(message.get("tool_calls", [])):
        function = call["function"]
        half = len(function["arguments"]) // 2
        yield {"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]}
        for part in (function["arguments"][:half], function["arguments"][half:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


async def error_of(call: Awaitable[object]) -> Exception:
    """Await a call that must fail, and return the exception."""
    try:
        await call
    except Exception as error:  # noqa: BLE001 - the test checks the type
        return error
    raise AssertionError("The call succeeded.")


@pytest.fixture
def openai_stub() -> Iterator[StubFactory]:
    """A factory of running stubs, `openai_stub(*replies)`, all of them stopped when the test ends."""
    running: list[OpenAIStub] = []

    def start(*replies: StubReply | Callable[[dict[str, Any]], StubReply]) -> OpenAIStub:
        running.append(OpenAIStub(*replies).__enter__())
        return running[-1]

    yield start
    for stub in running:
        stub.__exit__(None, None, None)
