"""OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.providers.exchange import Answer, Call, Kind, Message, Part, Reply, Request, Tool
from tests.providers.protocols.framing import pieces
from tests.providers.provider_calls import openai_annotations, openai_events, openai_items
from tests.providers.signatures import signature

_KINDS: Mapping[str, Kind] = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "input_image": "image",
    "input_file": "document",
    "input_audio": "audio",
    "summary_text": "reasoning",
}
_INCOMPLETE = {"length": "max_output_tokens", "filter": "content_filter"}


class OpenAIResponses:
    """Parses requests for `/responses` and writes its replies."""

    name = "openai_responses"
    stream_type = "text/event-stream"
    finish_mark = b"event: response.completed"
    error = (
        b'event: error\ndata: {"type": "error", "sequence_number": 2, "code": "server_is_overloaded", '
        b'"message": "The server is overloaded.", "param": null}\n\n'
    )

    def parse(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Request:
        """Return the request in the common form; calls become messages of their own."""
        given = body.get("input") or []
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        messages = list(map(_message, items))
        if body.get("instructions"):
            messages.insert(0, Message("system", (Part("text", body["instructions"]),)))
        functions = [tool for tool in body.get("tools") or () if tool.get("type") == "function"]
        return Request(
            path=path,
            headers=headers,
            body=body,
            model=str(body.get("model", "")),
            messages=tuple(messages),
            tools=tuple(Tool(str(tool.get("name", "")), tool.get("parameters"), tool) for tool in functions),
            tool_choice=body.get("tool_choice"),
            response_format=(body.get("text") or {}).get("format"),
            stream=bool(body.get("stream")),
        )

    def whole(self, reply: Reply, request: Request, shape: Any) -> Answer:
        """Return one response."""
        return Answer(200, json.dumps(_response(reply, request, _items(reply, request))).encode())

    def stream(self, reply: Reply, request: Request, shape: Any) -> Iterator[bytes]:
        """Yield the events of a streamed response."""
        items = _items(reply, request)
        begun: dict[str, Any] = {
            **_response(reply, request, []),
            "status": "in_progress",
            "usage": None,
            "incomplete_details": None,
        }
        events: list[dict[str, Any]] = [
            {"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")
        ]
        for index, item in enumerate(items):
            events += ({**event, "output_index": index} for event in _events(item))
        full = _response(reply, request, items)
        events.append({"type": f"response.{full['status']}", "response": full})
        for number, event in enumerate(events):
            data = json.dumps({**event, "sequence_number": number})
            yield f"event: {event['type']}\ndata: {data}\n\n".encode()

    def plain(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request with one question."""
        return "/v1/responses", {"model": model, "input": [{"role": "user", "content": "hi"}]}

    def listing(self, path: str, models: tuple[str, ...], window: int | None) -> Answer | None:
        """Answer the list of models."""
        if path != "/v1/models":
            return None
        data: list[dict[str, Any]] = [
            {"id": name, "object": "model", "created": 1, "owned_by": "openai"} for name in models
        ]
        return Answer(200, json.dumps({"object": "list", "data": data}).encode())


def _message(item: dict[str, Any]) -> Message:
    kind = item.get("type", "message")
    if kind == "function_call":
        call = Call(item.get("name", ""), item.get("arguments", ""), item.get("call_id", ""), item)
        return Message("assistant", calls=(call,), raw=item)
    if kind == "function_call_output":
        return Message("tool", _parts(item.get("output")), call_id=item.get("call_id", ""), raw=item)
    if kind.endswith("_call"):
        return Message("assistant", (Part("other", raw=item),), raw=item)
    if kind == "reasoning":
        return Message("assistant", _parts(item.get("summary") or [{"type": "summary_text"}]), raw=item)
    role = item.get("role", "")
    return Message("system" if role == "developer" else role, _parts(item.get("content")), raw=item)


def _parts(content: Any) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Part("text", content, content),) if content else ()
    return tuple(Part(_KINDS.get(part.get("type"), "other"), part.get("text") or "", part) for part in content or ())


def _items(reply: Reply, request: Request) -> list[dict[str, Any]]:
    """Return the items of the output. The ids of those that came with reasoning end as its own id does."""
    number = len(request.messages)
    items: list[dict[str, Any]] = []
    mark = ""
    if reply.reasoning:
        mark = f"rs{number}"
        content = signature(reply.reasoning, "openai")
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{mark}", "summary": summary, "encrypted_content": content})
    items += openai_items(reply.ran, number, request.body.get("include") or [])
    if reply.text:
        annotations = openai_annotations(reply.sources, reply.text)
        text = {"type": "output_text", "text": reply.text, "annotations": annotations}
        message = {"type": "message", "id": f"msg_{number}{mark}", "role": "assistant", "content": [text]}
        items.append({**message, "status": "completed"})
    for at, call in enumerate(reply.calls):
        ids = {"id": f"fc_{number}{at}{mark}", "call_id": call.id or f"call_{number}{at}"}
        function = {"name": call.name, "arguments": call.as_text(), "status": "completed"}
        items.append({"type": "function_call", **ids, **function})
    return items


def _events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"]}
    if item["type"].endswith("_call") and item["type"] != "function_call":
        yield from openai_events(item)
        return
    if item["type"] == "reasoning":
        yield _added({**item, "summary": []})
        part = {**at, "summary_index": 0}
        text = item["summary"][0]["text"]
        empty = {"type": "summary_text", "text": ""}
        yield {"type": "response.reasoning_summary_part.added", **part, "part": empty}
        for piece in pieces(text):
            yield {"type": "response.reasoning_summary_text.delta", **part, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **part, "text": text}
        yield {"type": "response.reasoning_summary_part.done", **part, "part": item["summary"][0]}
    elif item["type"] == "message":
        yield _added({**item, "content": [], "status": "in_progress"})
        part = {**at, "content_index": 0}
        full = item["content"][0]
        yield {"type": "response.content_part.added", **part, "part": {**full, "text": "", "annotations": []}}
        for piece in pieces(full["text"]):
            yield {"type": "response.output_text.delta", **part, "delta": piece, "logprobs": []}
        for index, annotation in enumerate(full["annotations"]):
            added = {"annotation_index": index, "annotation": annotation}
            yield {"type": "response.output_text.annotation.added", **part, **added}
        yield {"type": "response.output_text.done", **part, "text": full["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **part, "part": full}
    else:
        yield _added({**item, "arguments": "", "status": "in_progress"})
        for piece in pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
        done = {"type": "response.function_call_arguments.done", **at, "name": item["name"]}
        yield {**done, "arguments": item["arguments"]}
    yield {"type": "response.output_item.done", "item": item}


def _added(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "item": item}


def _response(reply: Reply, request: Request, output: list[dict[str, Any]]) -> dict[str, Any]:
    usage = reply.usage
    incomplete = _INCOMPLETE.get(reply.reason)
    return {
        "id": f"resp_{len(request.messages)}",
        "object": "response",
        "created_at": 1,
        "status": "incomplete" if incomplete else "completed",
        "error": None,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": request.tool_choice or "auto",
        "tools": request.body.get("tools") or [],
        "top_p": 1.0,
        "text": request.body.get("text") or {"format": {"type": "text"}},
        "usage": {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.input + usage.output,
        },
    }
