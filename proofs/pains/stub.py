"""Serves an OpenAI-compatible chat API on loopback, whose replies a scenario decides from each request.

The stub refuses what OpenAI refuses: a history in which a call has no result, a result without a call, a request over
the context window, and text that is no valid Unicode.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

CONTEXT_CHARS = 400_000
"""Characters a request may have: about 100,000 tokens."""


@dataclass(frozen=True)
class Call:
    """A tool call of a reply."""

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)
    """A string is sent as it is, valid JSON or not."""
    id: str | None = None
    """None makes one that is new in the process."""


@dataclass(frozen=True)
class Reply:
    """What the model sends."""

    text: str | None = None
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    """The finish reason; None selects `tool_calls` or `stop`."""
    raw: bool = False
    """Whether the text is sent as it is, also where a tool `final_answer` is offered."""
    cut: bool = False
    """Whether a stream ends without a finish reason, and without the last half of the text or arguments."""
    status: int = 200
    body: dict[str, Any] | None = None
    """The whole body, in place of a completion."""
    message: dict[str, Any] = field(default_factory=dict)
    """Further fields of the message."""
    chunks: tuple[dict[str, Any], ...] = ()
    """The events of a stream, in place of those made from the text and the calls."""
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    )


@dataclass(frozen=True)
class Request:
    """A request as it arrived."""

    number: int
    """0 for the first of a scenario, over all its processes."""
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The history. smolagents joins inputs and results in one message of the user, which is split here."""
        split: list[dict[str, Any]] = []
        for each in self.body["messages"]:
            parts = _PARTS.split(text_of(each)) if each["role"] == "user" else []
            split += [{**each, "content": part.strip()} for part in parts if part.strip()] or [each]
        return split

    @property
    def offered(self) -> set[str]:
        """Names of the tools that the model may call; empty if the tool choice is `none`."""
        if self.body.get("tool_choice") == "none":
            return set()
        return {tool["function"]["name"] for tool in self.body.get("tools") or ()}

    @property
    def results(self) -> list[str]:
        """The results of calls, in order."""
        return [text_of(each) for each in self.messages if is_result(each)]

    @property
    def fresh_results(self) -> list[str]:
        """The results since the last input."""
        last = max((index for index, each in enumerate(self.messages) if is_input(each)), default=-1)
        return [text_of(each) for each in self.messages[last + 1 :] if is_result(each)]

    @property
    def inputs(self) -> list[str]:
        """What the user wrote, in order."""
        return [text_of(each).removeprefix("New task:\n") for each in self.messages if is_input(each)]

    def called(self, name: str) -> list[dict[str, Any]]:
        """The arguments of the calls of a tool in the history."""
        calls = [call for each in self.messages for call in each.get("tool_calls") or ()]
        return [json.loads(call["function"]["arguments"]) for call in calls if call["function"]["name"] == name]


Model = Callable[[Request], Reply]
_OBSERVATIONS = ("Observation:", "Error:\n")
"""How smolagents begins results."""
_PARTS = re.compile(r"^(?=New task:\n|Observation:|Error:\n)", re.M)


def text_of(message: dict[str, Any]) -> str:
    """The text of a message whose content is text, blocks or null."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(block.get("text", "")) for block in content)
    return content or ""


def is_result(message: dict[str, Any]) -> bool:
    """Whether a message is the result of a call."""
    return message["role"] == "tool" or (message["role"] == "user" and text_of(message).startswith(_OBSERVATIONS))


def is_input(message: dict[str, Any]) -> bool:
    """Whether a message is what the user wrote."""
    return message["role"] == "user" and not is_result(message)


def refusal(body: dict[str, Any], size: int) -> str:
    """Why a provider would refuse a request; empty if it would not."""
    if size > CONTEXT_CHARS:
        return f"This model's maximum context length is exceeded: {size} characters."
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "The request has text that is no valid Unicode."
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            break
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    if waiting:
        return (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}"
        )
    return ""


class Stub:
    """The server; it listens while the `with` block lasts."""

    def __init__(self, model: Model) -> None:
        self.requests: list[Request] = []
        """Every request, also the refused ones."""
        self.refused: list[str] = []
        """The reasons of refused requests."""
        self._model = model
        self._ids = 0
        self._lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                with suppress(ConnectionError):
                    stub._serve(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        """The address for a client, with `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Stub:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        try:
            body = json.loads(raw)
        except UnicodeDecodeError:
            body = {"messages": [], "unicode": "\ud800"}
        with self._lock:
            request = Request(len(self.requests), body)
            self.requests.append(request)
            refused = refusal(body, len(raw))
            if refused:
                self.refused.append(refused)
                reply = Reply(status=400, body={"error": {"message": refused, "type": "invalid_request_error"}})
            else:
                reply = self._model(request)
            message = self._message(reply, request)
        if reply.body is not None:
            _send_json(handler, reply.status, reply.body)
        elif body.get("stream"):
            _send_events(handler, _events(request, reply, message))
        else:
            finish = reply.finish or ("tool_calls" if message.get("tool_calls") else "stop")
            choice = {"index": 0, "message": message, "finish_reason": finish}
            completion = {**_head(request), "object": "chat.completion", "choices": [choice], "usage": reply.usage}
            _send_json(handler, 200, completion)

    def _message(self, reply: Reply, request: Request) -> dict[str, Any]:
        calls, text = reply.calls, reply.text
        if text is not None and not calls and not reply.raw and "final_answer" in request.offered:
            calls, text = (Call("final_answer", {"answer": text}),), None
        message: dict[str, Any] = {"role": "assistant", "content": text, **reply.message}
        for call in calls:
            self._ids += 1
            arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
            id_ = f"call_{self._ids}" if call.id is None else call.id
            made = {"id": id_, "type": "function", "function": {"name": call.name, "arguments": arguments}}
            message.setdefault("tool_calls", []).append(made)
        return message


def _head(request: Request) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request.number}", "created": 1, "model": request.body.get("model", "stub")}


def _halves(text: str) -> list[str]:
    middle = (len(text) + 1) // 2
    return [text[:middle], text[middle:]]


def _deltas(message: dict[str, Any], cut: bool) -> Iterator[dict[str, Any]]:
    """The message in pieces: text and arguments come in two halves, of which a cut stream has the first."""
    rest = {key: value for key, value in message.items() if key not in {"content", "tool_calls"}}
    yield {**rest, "content": ""}
    for half in _halves(message["content"] or "")[: 1 if cut else 2]:
        yield {"content": half}
    for index, call in enumerate(message.get("tool_calls") or ()):
        first, second = _halves(call["function"]["arguments"])
        head = {"name": call["function"]["name"], "arguments": first}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": head}]}
        if not cut:
            yield {"tool_calls": [{"index": index, "function": {"arguments": second}}]}


def _events(request: Request, reply: Reply, message: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """The events of a stream; None stands for its end mark."""
    head = {**_head(request), "object": "chat.completion.chunk"}
    if reply.chunks:
        for chunk in reply.chunks:
            yield {**head, **chunk}
    else:
        for delta in _deltas(message, reply.cut):
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        if reply.cut:
            return
        finish = reply.finish or ("tool_calls" if message.get("tool_calls") else "stop")
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": reply.usage}
    yield None


def _send_json(handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(raw)))
    if status == 429:
        handler.send_header("retry-after", "0")
    handler.end_headers()
    handler.wfile.write(raw)


def _send_events(handler: BaseHTTPRequestHandler, events: Iterator[dict[str, Any] | None]) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    for event in events:
        handler.wfile.write(b"data: " + (b"[DONE]" if event is None else json.dumps(event).encode()) + b"\n\n")
        handler.wfile.flush()
