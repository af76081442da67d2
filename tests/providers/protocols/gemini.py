"""Google's generateContent, of the Gemini API and of Vertex AI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.providers.exchange import Answer, Call, Kind, Message, Part, Reply, Request, Tool
from tests.providers.protocols.framing import pieces
from tests.providers.provider_calls import gemini_grounding, gemini_parts
from tests.providers.signatures import signature

_PATH = re.compile(r".*/models/(?P<model>[^/:?]+):(?P<method>\w+)")
_FINISH = {"stop": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}


@dataclass(frozen=True)
class GeminiShape:
    """The form of the replies of one endpoint."""

    maker: str = "gemini"
    """Signs the thoughts; `vertex` for Vertex AI."""
    signed: bool = True
    """Whether the first call of a reply has a signature, as from Gemini 3 on."""


class Gemini:
    """Parses requests for `:generateContent` and `:streamGenerateContent` and writes their replies."""

    name = "gemini"
    stream_type = "text/event-stream"
    finish_mark = b"finishReason"
    error = (
        b'data: {"error": {"code": 503, "message": "The model is overloaded. Please try again later.", '
        b'"status": "UNAVAILABLE"}}\r\n\r\n'
    )

    def parse(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Request:
        """Return the request in the common form; keys in snake case are accepted too, as the API does."""
        match = _PATH.match(path)
        messages = [message for raw in body.get("contents") or () for message in _messages(raw)]
        if system := field(body, "systemInstruction"):
            messages.insert(0, Message("system", tuple(map(_part, system.get("parts") or ())), raw=system))
        declared = [each for tool in body.get("tools") or () for each in field(tool, "functionDeclarations") or ()]
        config = field(body, "generationConfig") or {}
        schema = field(config, "responseJsonSchema") or field(config, "responseSchema")
        return Request(
            path=path,
            headers=headers,
            body=body,
            model=match["model"] if match else "",
            messages=tuple(messages),
            tools=tuple(
                Tool(str(each.get("name", "")), field(each, "parametersJsonSchema") or each.get("parameters"), each)
                for each in declared
            ),
            tool_choice=field(field(body, "toolConfig") or {}, "functionCallingConfig"),
            response_format=schema or field(config, "responseMimeType"),
            stream=match is not None and match["method"] == "streamGenerateContent",
        )

    def whole(self, reply: Reply, request: Request, shape: Any) -> Answer:
        """Return one response."""
        form: GeminiShape = shape or GeminiShape()
        parts = _parts(reply, form)
        return Answer(200, json.dumps(_response(reply, request, parts, finish=True)).encode())

    def stream(self, reply: Reply, request: Request, shape: Any) -> Iterator[bytes]:
        """Yield the chunks of a streamed response: each repeats the usage, the last has an empty text."""
        form: GeminiShape = shape or GeminiShape()
        for part in _parts(reply, form):
            for piece in _pieces(part):
                yield _event(_response(reply, request, [piece], finish=False))
        yield _event(_response(reply, request, [{"text": ""}], finish=True))

    def plain(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request with one question."""
        return f"/v1/models/{model}:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}

    def listing(self, path: str, models: tuple[str, ...], window: int | None) -> Answer | None:
        """Answer the list of models."""
        if not re.fullmatch(r"/v1(beta\w*)?/models", path.partition("?")[0]):
            return None
        data = [{"name": f"models/{name}", "inputTokenLimit": window or 1_048_576} for name in models]
        return Answer(200, json.dumps({"models": data}).encode())


def field(value: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name in camel case; JSON of protocol buffers accepts snake case too."""
    return value.get(name, value.get(re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)))


def _messages(raw: dict[str, Any]) -> Iterator[Message]:
    """Yield a turn's results as messages of their own, then what is left of it."""
    parts = raw.get("parts") or []
    others = []
    for part in parts:
        if (response := field(part, "functionResponse")) is None:
            others.append(part)
            continue
        content = response.get("response")
        text = content if isinstance(content, str) else json.dumps(content)
        media = tuple(map(_part, response.get("parts") or ()))
        # A result carries an id only if its call had one; the name stands for it.
        call_id = str(response.get("id") or response.get("name", ""))
        yield Message("tool", (Part("text", _text_of(content) or text, part), *media), call_id=call_id, raw=part)
    if others or not parts:
        calls = tuple(
            Call(call.get("name", ""), call.get("args") or {}, str(call.get("id") or call.get("name", "")), part)
            for part in others
            if (call := field(part, "functionCall")) is not None
        )
        role = "assistant" if raw.get("role") == "model" else str(raw.get("role", "user"))
        rest = tuple(_part(part) for part in others if field(part, "functionCall") is None)
        yield Message(role, rest, calls, raw=raw)


def _text_of(content: Any) -> str:
    """Return the text of a result: of its one field `output`, in which the client puts it, or none."""
    output = content.get("output") if isinstance(content, dict) and len(content) == 1 else None
    return output if isinstance(output, str) else ""


def _part(part: dict[str, Any]) -> Part:
    if part.get("thought"):
        return Part("reasoning", str(part.get("text", "")), part)
    if "text" in part:
        return Part("text", str(part["text"]), part)
    data = field(part, "inlineData") or field(part, "fileData")
    if data is None:
        return Part("other", "", part)
    kinds: dict[str, Kind] = {"image": "image", "audio": "audio", "application": "document", "text": "document"}
    return Part(kinds.get(str(field(data, "mimeType")).partition("/")[0], "other"), "", part)


def _parts(reply: Reply, form: GeminiShape) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if reply.reasoning:
        parts.append({"text": reply.reasoning, "thought": True})
    parts += gemini_parts(reply.ran)
    if reply.text:
        parts.append({"text": reply.text})
    for number, call in enumerate(reply.calls):
        part: dict[str, Any] = {"functionCall": {"name": call.name, "args": call.parsed()}}
        if form.signed and number == 0:
            part["thoughtSignature"] = signature("call", form.maker)
        parts.append(part)
    return parts


def _pieces(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a part: text in pieces, a call whole."""
    return [{**part, "text": piece} for piece in pieces(part["text"])] if "text" in part else [part]


def _response(reply: Reply, request: Request, parts: list[dict[str, Any]], *, finish: bool) -> dict[str, Any]:
    usage = reply.usage
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = _FINISH.get(reply.reason, reply.reason)
        if (grounding := gemini_grounding(reply.ran, reply.sources, reply.text)) is not None:
            candidate["groundingMetadata"] = grounding
    counts = {
        "promptTokenCount": usage.input,
        # Thoughts are counted apart from the candidates.
        "candidatesTokenCount": usage.output - usage.reasoning,
        "totalTokenCount": usage.input + usage.output,
    }
    if usage.reasoning:
        counts["thoughtsTokenCount"] = usage.reasoning
    if usage.cached:
        counts["cachedContentTokenCount"] = usage.cached
    return {
        "candidates": [candidate],
        "usageMetadata": counts,
        "modelVersion": request.model,
        "responseId": "response_1",
    }


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\r\n\r\n".encode()
