"""Cohere's chat API, version 2."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.providers.exchange import Answer, Call, Kind, Message, Part, Reply, Request, Tool
from tests.providers.protocols.framing import pieces

_FINISH = {"stop": "COMPLETE", "calls": "TOOL_CALL", "length": "MAX_TOKENS", "filter": "ERROR"}
_KINDS: Mapping[str, Kind] = {
    "text": "text",
    "image_url": "image",
    "document": "text",
    "thinking": "reasoning",
}


class Cohere:
    """Parses requests for `/v2/chat` and writes its replies."""

    name = "cohere"
    stream_type = "text/event-stream"
    finish_mark = b"message-end"
    error = (
        b'event: message-end\ndata: {"type": "message-end", "delta": {"finish_reason": "ERROR", '
        b'"error": "the service is temporarily unavailable", '
        b'"usage": {"billed_units": {"input_tokens": 0, "output_tokens": 0}}}}\n\n'
    )

    def parse(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Request:
        """Return the request in the common form."""
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
            tool_choice=body.get("tool_choice"),
            response_format=body.get("response_format"),
            stream=bool(body.get("stream")),
        )

    def whole(self, reply: Reply, request: Request, shape: Any) -> Answer:
        """Return one response; text before calls is the plan of its calls."""
        content = [{"type": "thinking", "thinking": reply.reasoning}] if reply.reasoning else []
        message: dict[str, Any] = {"role": "assistant"}
        if reply.calls:
            message |= {"tool_plan": reply.text, "tool_calls": _calls(reply, request)}
        elif reply.text:
            content.append({"type": "text", "text": reply.text})
        if content:
            message["content"] = content
        return Answer(200, json.dumps({"id": "chat_1", "message": message, **_end(reply)}).encode())

    def stream(self, reply: Reply, request: Request, shape: Any) -> Iterator[bytes]:
        """Yield the events of a streamed response."""
        yield _event("message-start", id="chat_1", delta={"message": {"role": "assistant", "content": []}})
        index = 0
        for kind, text in (("thinking", reply.reasoning), ("text", "" if reply.calls else reply.text)):
            if not text:
                continue
            yield _content("content-start", index, {"type": kind, kind: ""})
            for piece in pieces(text):
                yield _content("content-delta", index, {kind: piece})
            yield _event("content-end", index=index)
            index += 1
        for piece in pieces(reply.text) if reply.calls else ():
            yield _event("tool-plan-delta", delta={"message": {"tool_plan": piece}})
        for number, call in enumerate(_calls(reply, request)):
            text = call["function"]["arguments"]
            opened = {**call, "function": {**call["function"], "arguments": ""}}
            yield _event("tool-call-start", index=number, delta={"message": {"tool_calls": opened}})
            # A call without arguments has no delta.
            for piece in pieces(text) if text != "null" else ():
                delta = {"message": {"tool_calls": {"function": {"arguments": piece}}}}
                yield _event("tool-call-delta", index=number, delta=delta)
            yield _event("tool-call-end", index=number)
        yield _event("message-end", id="chat_1", delta=_end(reply))
        yield b"data: [DONE]\n\n"

    def plain(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request with one question."""
        return "/v2/chat", {"model": model, "messages": [{"role": "user", "content": "hi"}]}

    def listing(self, path: str, models: tuple[str, ...], window: int | None) -> Answer | None:
        """Answer the list of models."""
        if path.partition("?")[0] != "/v1/models":
            return None
        data = [{"name": name, "endpoints": ["chat"], "context_length": window or 128_000} for name in models]
        return Answer(200, json.dumps({"models": data}).encode())


def _message(raw: dict[str, Any]) -> Message:
    content = raw.get("content") or []
    items = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [Part("text", raw["tool_plan"], raw["tool_plan"])] if raw.get("tool_plan") else []
    parts += [Part(_KINDS.get(str(item.get("type")), "other"), _text(item), item) for item in items]
    functions = [(call.get("function") or {}, call) for call in raw.get("tool_calls") or ()]
    calls = tuple(
        Call(str(function.get("name", "")), function.get("arguments") or "", str(call.get("id", "")), call)
        for function, call in functions
    )
    return Message(str(raw.get("role", "")), tuple(parts), calls, str(raw.get("tool_call_id") or ""), raw)


def _text(item: dict[str, Any]) -> str:
    if item.get("type") != "document":
        return str(item.get("text") or item.get("thinking") or "")
    data = (item.get("document") or {}).get("data")
    return data if isinstance(data, str) else "".join(map(str, (data or {}).values()))


def _calls(reply: Reply, request: Request) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id or f"{call.name}_{number:08d}",
            "type": "function",
            # The text null stands for no arguments.
            "function": {"name": call.name, "arguments": call.as_text() if call.arguments else "null"},
        }
        for number, call in enumerate(reply.calls, len(request.calls) + 1)
    ]


def _end(reply: Reply) -> dict[str, Any]:
    counts = {"input_tokens": reply.usage.input, "output_tokens": reply.usage.output}
    # The model reads more tokens than are billed, such as those of the provider's own instructions.
    usage = {"billed_units": {**counts, "input_tokens": counts["input_tokens"] // 2}, "tokens": counts}
    return {"finish_reason": _FINISH.get(reply.reason, reply.reason), "usage": usage}


def _content(kind: str, index: int, content: dict[str, str]) -> bytes:
    return _event(kind, index=index, delta={"message": {"content": content}})


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
