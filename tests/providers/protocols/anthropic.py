"""Anthropic's Messages API."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.providers.exchange import Answer, Call, Kind, Message, Part, Reply, Request, Tool
from tests.providers.protocols.framing import pieces
from tests.providers.provider_calls import anthropic_blocks, anthropic_citations
from tests.providers.signatures import signature

_KINDS: Mapping[str, Kind] = {
    "text": "text",
    "image": "image",
    "document": "document",
    "thinking": "reasoning",
    "redacted_thinking": "reasoning",
}
_NUMBERS = itertools.count(1)
"""Numbers of calls; no two calls have the same id, also if the history of a request is no longer whole."""
_FINISH = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "refusal"}


@dataclass(frozen=True)
class AnthropicShape:
    """The form of the replies of one endpoint."""

    maker: str = "anthropic"
    """Signs the thinking."""
    thinks: bool = False
    """Whether every reply begins with thinking, as with a budget for it."""
    repeated_start: bool = False
    """Whether a stream has a second `message_start`, as compatible gateways send it."""


class Anthropic:
    """Parses requests for `/v1/messages` and writes its replies."""

    name = "anthropic"
    stream_type = "text/event-stream"
    finish_mark = b"message_delta"
    error = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'

    def parse(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Request:
        """Return the request in the common form; a user message with results becomes several messages."""
        messages = [message for raw in body.get("messages") or () for message in _messages(raw)]
        if body.get("system"):
            messages.insert(0, Message("system", _parts(body["system"]), raw=body["system"]))
        return Request(
            path=path,
            headers=headers,
            body=body,
            model=str(body.get("model", "")),
            messages=tuple(messages),
            tools=tuple(
                Tool(str(tool.get("name", "")), tool.get("input_schema"), tool) for tool in body.get("tools") or ()
            ),
            tool_choice=body.get("tool_choice"),
            response_format=(body.get("output_config") or {}).get("format"),
            stream=bool(body.get("stream")),
        )

    def whole(self, reply: Reply, request: Request, shape: Any) -> Answer:
        """Return a message."""
        blocks = _blocks(reply, shape, len(request.messages))
        body = {**_head(request), "content": blocks, **_end(reply), "usage": _usage(reply)}
        return Answer(200, json.dumps(body).encode(), headers={"request-id": "req_0"})

    def stream(self, reply: Reply, request: Request, shape: Any) -> Iterator[bytes]:
        """Yield the events of a streamed message."""
        usage = _usage(reply)
        start = {**_head(request), "content": [], "stop_reason": None, "stop_sequence": None}
        started = {"type": "message_start", "message": {**start, "usage": {**usage, "output_tokens": 1}}}
        yield _event(started)
        yield _event({"type": "ping"})
        if shape is not None and shape.repeated_start:
            yield _event(started)
        for index, block in enumerate(_blocks(reply, shape, len(request.messages))):
            empty, deltas = _opened(block)
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
            for delta in deltas:
                yield _event({"type": "content_block_delta", "index": index, "delta": delta})
                yield _event({"type": "ping"})
            yield _event({"type": "content_block_stop", "index": index})
        yield _event({"type": "message_delta", "delta": _end(reply), "usage": usage})
        yield _event({"type": "message_stop"})

    def plain(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request with one question."""
        return "/v1/messages", {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}

    def listing(self, path: str, models: tuple[str, ...], window: int | None) -> Answer | None:
        """Answer the list of models."""
        if path.partition("?")[0] != "/v1/models":
            return None
        data = [{"type": "model", "id": name, "display_name": name} for name in models]
        return Answer(200, json.dumps({"data": data, "has_more": False}).encode())


def _messages(raw: dict[str, Any]) -> Iterator[Message]:
    content = raw.get("content") or []
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    others = []
    for block in blocks:
        if block.get("type") == "tool_result":
            yield Message("tool", _parts(block.get("content", "")), call_id=block.get("tool_use_id", ""), raw=block)
        else:
            others.append(block)
    if others or not blocks:
        calls = tuple(
            Call(block.get("name", ""), block.get("input", {}), block.get("id", ""), block)
            for block in others
            if block.get("type") == "tool_use"
        )
        yield Message(str(raw.get("role")), _parts(others), calls, raw=raw)


def _parts(content: Any) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Part("text", content, content),) if content else ()
    return tuple(
        Part(_KINDS.get(block.get("type"), "other"), block.get("text") or block.get("thinking") or "", block)
        for block in content
        if block.get("type") != "tool_use"
    )


def _head(request: Request) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": request.model}


def _end(reply: Reply) -> dict[str, Any]:
    return {"stop_reason": _FINISH.get(reply.reason, reply.reason), "stop_sequence": None}


def _usage(reply: Reply) -> dict[str, Any]:
    # Tokens read from a cache are no part of the input tokens here.
    usage = reply.usage
    searches = sum(run.kind == "search" for run in reply.ran)
    return {
        **({"server_tool_use": {"web_search_requests": searches}} if searches else {}),
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _blocks(reply: Reply, shape: AnthropicShape | None, number: int) -> list[dict[str, Any]]:
    form = shape or AnthropicShape()
    blocks: list[dict[str, Any]] = []
    if reasoning := reply.reasoning or ("Let me think." if form.thinks else ""):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": signature(reasoning, form.maker)})
    blocks += anthropic_blocks(reply.ran, number)
    if reply.text:
        cited = {"citations": anthropic_citations(reply.sources)} if reply.sources else {}
        blocks.append({"type": "text", "text": reply.text, **cited})
    for call in reply.calls:
        id_ = call.id or f"toolu_{next(_NUMBERS):02d}"
        blocks.append({"type": "tool_use", "id": id_, "name": call.name, "input": call.parsed()})
    return blocks


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block as its start event has it, and the deltas that complete it."""
    if block["type"] == "text":
        deltas: list[dict[str, Any]] = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        cited = [{"type": "citations_delta", "citation": each} for each in block.get("citations") or ()]
        # The API sends the citations of a block before its text.
        return {**block, "text": "", **({"citations": []} if cited else {})}, [*cited, *deltas]
    if block["type"].endswith("_result"):
        return block, []
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        return {**block, "thinking": "", "signature": ""}, [
            *deltas,
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    # A call without arguments has one empty delta.
    parts = ["", *(pieces(json.dumps(block["input"])) if block["input"] else [])]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]


def _event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()
