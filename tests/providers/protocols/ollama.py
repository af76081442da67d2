"""Ollama's own API, with lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.providers.exchange import Answer, Call, Message, Part, Reply, Request, Tool
from tests.providers.protocols.framing import pieces

_FINISH = {"stop": "stop", "calls": "stop", "length": "length"}


class Ollama:
    """Parses requests for `/api/chat` and writes its replies."""

    name = "ollama"
    stream_type = "application/x-ndjson"
    finish_mark = b'"done": true'
    error = b'{"error": "an error was encountered while running the model: unexpected EOF"}\n'

    def parse(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Request:
        """Return the request in the common form; a stream is the default."""
        functions = [(tool.get("function") or {}, tool) for tool in body.get("tools") or ()]
        return Request(
            path=path,
            headers=headers,
            body=body,
            model=str(body.get("model", "")),
            messages=tuple(map(_message, body.get("messages") or ())),
            tools=tuple(
                Tool(str(function.get("name", "")), function.get("parameters"), raw) for function, raw in functions
            ),
            response_format=body.get("format") or None,
            stream=body.get("stream", True) is not False,
        )

    def whole(self, reply: Reply, request: Request, shape: Any) -> Answer:
        """Return one object."""
        message = {"role": "assistant", "content": reply.text, **_thinking(reply.reasoning), **_calls(reply)}
        return Answer(200, json.dumps({**_head(request), "message": message, **_end(reply)}).encode())

    def stream(self, reply: Reply, request: Request, shape: Any) -> Iterator[bytes]:
        """Yield the lines of a streamed reply; calls come whole."""
        for piece in pieces(reply.reasoning):
            yield _line(request, {"content": "", **_thinking(piece)}, done=False)
        for piece in pieces(reply.text):
            yield _line(request, {"content": piece}, done=False)
        if reply.calls:
            yield _line(request, {"content": "", **_calls(reply)}, done=False)
        yield _line(request, {"content": ""}, **_end(reply))

    def plain(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request with one question."""
        return "/api/chat", {"model": model, "stream": False, "messages": [{"role": "user", "content": "hi"}]}

    def listing(self, path: str, models: tuple[str, ...], window: int | None) -> Answer | None:
        """Answer the list of models."""
        if path != "/api/tags":
            return None
        return Answer(200, json.dumps({"models": [{"name": name, "model": name} for name in models]}).encode())


def _message(raw: dict[str, Any]) -> Message:
    content = raw.get("content")
    parts = [Part("text", content, content)] if isinstance(content, str) and content else []
    if content and not isinstance(content, str):
        parts.append(Part("other", "", content))
    parts += [Part("image", "", image) for image in raw.get("images") or ()]
    if raw.get("thinking"):
        parts.append(Part("reasoning", str(raw["thinking"]), raw["thinking"]))
    functions = [(call.get("function") or {}, call) for call in raw.get("tool_calls") or ()]
    calls = tuple(
        Call(str(function.get("name", "")), function.get("arguments", {}), str(call.get("id", "")), call)
        for function, call in functions
    )
    return Message(str(raw.get("role", "")), tuple(parts), calls, str(raw.get("tool_call_id") or ""), raw)


def _head(request: Request) -> dict[str, Any]:
    return {"model": request.model, "created_at": "2026-01-01T00:00:00Z"}


def _thinking(text: str) -> dict[str, Any]:
    return {"thinking": text} if text else {}


def _calls(reply: Reply) -> dict[str, Any]:
    if not reply.calls:
        return {}
    return {"tool_calls": [{"function": {"name": call.name, "arguments": call.parsed()}} for call in reply.calls]}


def _end(reply: Reply) -> dict[str, Any]:
    return {
        "done": True,
        "done_reason": _FINISH.get(reply.reason, reply.reason),
        "total_duration": 1,
        "load_duration": 1,
        "prompt_eval_count": reply.usage.input,
        "prompt_eval_duration": 1,
        "eval_count": reply.usage.output,
        "eval_duration": 1,
    }


def _line(request: Request, message: dict[str, Any], **end: Any) -> bytes:
    return json.dumps({**_head(request), "message": {"role": "assistant", **message}, **end}).encode() + b"\n"
