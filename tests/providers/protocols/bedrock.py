"""Converse and ConverseStream of Amazon Bedrock, with its binary events."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from tests.providers.exchange import Answer, Call, Kind, Message, Part, Reply, Request, Tool
from tests.providers.protocols.framing import pieces
from tests.providers.signatures import signature

_PATH = re.compile(r"/model/(?P<model>[^/]+)/converse(?P<stream>-stream)?")
_FINISH = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "content_filtered"}
_KINDS: Mapping[str, Kind] = {
    "text": "text",
    "json": "text",
    "image": "image",
    "document": "document",
    "audio": "audio",
    "reasoningContent": "reasoning",
}
_TEXT = 7
"""Type of a header whose value is text."""


@dataclass(frozen=True)
class BedrockShape:
    """The form of the replies of one model."""

    thinks: bool = False
    """Whether every reply begins with reasoning, as with a budget for it."""


class Bedrock:
    """Parses requests of Converse and writes its replies."""

    name = "bedrock"
    stream_type = "application/vnd.amazon.eventstream"
    finish_mark = b"messageStop"

    @property
    def error(self) -> bytes:
        """An exception in a stream: it has no status."""
        return event("serviceUnavailableException", {"message": "Bedrock is overloaded."}, "exception")

    def parse(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Request:
        """Return the request in the common form; a user message with results becomes several messages."""
        match = _PATH.match(path)
        messages = [message for raw in body.get("messages") or () for message in _messages(raw)]
        if body.get("system"):
            messages.insert(0, Message("system", tuple(map(_part, body["system"])), raw=body["system"]))
        config = body.get("toolConfig") or {}
        specs = [tool["toolSpec"] for tool in config.get("tools") or () if "toolSpec" in tool]
        return Request(
            path=path,
            headers=headers,
            body=body,
            model=unquote(match["model"]) if match else "",
            messages=tuple(messages),
            tools=tuple(
                Tool(str(spec.get("name", "")), (spec.get("inputSchema") or {}).get("json"), spec) for spec in specs
            ),
            tool_choice=config.get("toolChoice"),
            response_format=(body.get("outputConfig") or {}).get("textFormat"),
            stream=match is not None and match["stream"] is not None,
        )

    def whole(self, reply: Reply, request: Request, shape: Any) -> Answer:
        """Return the output of Converse."""
        body = {
            "output": {"message": {"role": "assistant", "content": _blocks(reply, request, shape)}},
            "stopReason": _FINISH.get(reply.reason, reply.reason),
            "usage": _usage(reply),
            "metrics": {"latencyMs": 1},
        }
        return Answer(200, json.dumps(body).encode())

    def stream(self, reply: Reply, request: Request, shape: Any) -> Iterator[bytes]:
        """Yield the events of ConverseStream; the last one has the usage."""
        yield event("messageStart", {"role": "assistant"})
        for index, block in enumerate(_blocks(reply, request, shape)):
            at = {"contentBlockIndex": index}
            if "toolUse" in block:
                call = block["toolUse"]
                start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
                yield event("contentBlockStart", {**at, "start": start})
            for delta in _deltas(block):
                yield event("contentBlockDelta", {**at, "delta": delta})
            yield event("contentBlockStop", at)
        yield event("messageStop", {"stopReason": _FINISH.get(reply.reason, reply.reason)})
        yield event("metadata", {"usage": _usage(reply), "metrics": {"latencyMs": 1}})

    def plain(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request with one question."""
        return f"/model/{quote(model, safe='')}/converse", {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}

    def listing(self, path: str, models: tuple[str, ...], window: int | None) -> Answer | None:
        """Return None: another service lists the models."""
        return None


def event(kind: str, payload: Mapping[str, Any], message_type: str = "event") -> bytes:
    """Return one event in the binary form: a prelude, headers and a payload, with checksums of prelude and whole."""
    names = {":event-type" if message_type == "event" else ":exception-type": kind}
    names |= {":content-type": "application/json", ":message-type": message_type}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + bytes([_TEXT]) + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    body = json.dumps(payload).encode()
    # The length counts the prelude with its checksum (12 bytes) and the checksum at the end (4 bytes).
    prelude = struct.pack(">II", len(headers) + len(body) + 16, len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack(">I", zlib.crc32(message))


def _messages(raw: dict[str, Any]) -> Iterator[Message]:
    blocks = raw.get("content") or []
    others = []
    for block in blocks:
        if (result := block.get("toolResult")) is not None:
            content = tuple(map(_part, result.get("content") or ()))
            yield Message("tool", content, call_id=str(result.get("toolUseId", "")), raw=result)
        else:
            others.append(block)
    if others or not blocks:
        calls = tuple(
            Call(call.get("name", ""), call.get("input", {}), str(call.get("toolUseId", "")), call)
            for block in others
            if (call := block.get("toolUse")) is not None
        )
        parts = tuple(_part(block) for block in others if "toolUse" not in block)
        yield Message(str(raw.get("role")), parts, calls, raw=raw)


def _part(block: dict[str, Any]) -> Part:
    kind = next(iter(block), "other")
    value = block.get(kind)
    text = value if isinstance(value, str) else json.dumps(value) if kind == "json" else ""
    if kind == "reasoningContent":
        text = str((block[kind].get("reasoningText") or {}).get("text", ""))
    return Part(_KINDS.get(kind, "other"), text, block)


def _blocks(reply: Reply, request: Request, shape: BedrockShape | None) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reasoning := reply.reasoning or ("Let me think." if shape is not None and shape.thinks else ""):
        signed = {"text": reasoning, "signature": signature(reasoning, "bedrock")}
        blocks.append({"reasoningContent": {"reasoningText": signed}})
    if reply.text:
        blocks.append({"text": reply.text})
    for number, call in enumerate(reply.calls, len(request.calls) + 1):
        id_ = call.id or f"tooluse_{number:02d}"
        blocks.append({"toolUse": {"toolUseId": id_, "name": call.name, "input": call.parsed()}})
    return blocks


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "toolUse" in block:
        # A call without arguments has no delta.
        for piece in pieces(json.dumps(block["toolUse"]["input"])) if block["toolUse"]["input"] else ():
            yield {"toolUse": {"input": piece}}
    elif "reasoningContent" in block:
        signed = block["reasoningContent"]["reasoningText"]
        for piece in pieces(signed["text"]):
            yield {"reasoningContent": {"text": piece}}
        yield {"reasoningContent": {"signature": signed["signature"]}}
    else:
        for piece in pieces(block["text"]):
            yield {"text": piece}


def _usage(reply: Reply) -> dict[str, int]:
    # Tokens read from a cache are no part of the input tokens here.
    usage = reply.usage
    return {
        "inputTokens": usage.input - usage.cached,
        "outputTokens": usage.output,
        "totalTokens": usage.input + usage.output,
        "cacheReadInputTokens": usage.cached,
        "cacheWriteInputTokens": 0,
    }
