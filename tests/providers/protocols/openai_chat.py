"""OpenAI's chat completions, and the variants of the providers and servers that copy it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.providers.exchange import Answer, Call, Kind, Message, Part, Reply, Request, Tool, Usage
from tests.providers.protocols.framing import pieces

_KINDS: dict[str, Kind] = {
    "text": "text",
    "image_url": "image",
    "file": "document",
    "document_url": "document",
    "input_audio": "audio",
    "thinking": "reasoning",
}
_FINISH = {"stop": "stop", "calls": "tool_calls", "length": "length", "filter": "content_filter"}
_REASONING_FIELDS = ("reasoning_content", "reasoning")


@dataclass(frozen=True)
class ChatShape:
    """The form of the replies of one provider."""

    calls: Literal["fragments", "whole", "bare", "empty_ids", "no_index", "index_zero", "index_one", "opened_only"] = (
        "fragments"
    )
    """Pieces of a streamed call: an opening, later `index` and `arguments`; one piece; one piece without index
    and type, with the finish reason; later pieces with id `''`; pieces without index; one piece with index 0 for each
    call; indexes from 1 on; an index in the opening only."""
    reasoning: Literal["reasoning_content", "reasoning", "reasoning_details", "thinking_parts", "think_tags"] | None = (
        None
    )
    """Where reasoning stands; None if the provider does not show it."""
    thinks_before_calls: bool = False
    """Whether a reply with calls has reasoning, also if the situation gives none."""
    usage: Literal["last", "with_finish", "twice", "cumulative"] = "last"
    """The chunk of a stream that has the usage: a last one without choices, that of the finish reason (in two places
    of it, as Groq), or each."""
    usage_unasked: bool = True
    """Whether a stream has its usage without `stream_options.include_usage`."""
    usage_of: Callable[[Usage], dict[str, Any]] | None = None
    """Makes the usage; None for OpenAI's form."""
    finish_key: bool = True
    """Whether each choice of a stream has the key `finish_reason`."""
    finish_apart: bool = False
    """Whether the finish reason of calls has a chunk of its own."""
    opening: tuple[bytes, ...] = ()
    """What stands before the first chunk, framed."""
    extra: Mapping[str, Any] | None = None
    """Further fields of each chunk and of a whole reply."""
    call_extra: Callable[[str, int], dict[str, Any]] | None = None
    """Further fields of a call, by its id and its place in the reply."""
    object_arguments: bool = False
    """Whether a reply that is not streamed has arguments as an object."""
    call_id: Callable[[str, int], str] = lambda name, number: f"call_{number:024d}"
    """Makes the id of a call from its name and its number among all calls of the request's conversation."""
    done: bool = True
    """Whether a stream ends with `[DONE]`."""
    json_for_stream: bool = False
    """Whether a request for a stream is answered by one JSON body."""


PLAIN = ChatShape()


def _form(request: Request, shape: Any) -> ChatShape:
    """Return the form of a reply; MiniMax separates reasoning from the text if a request asks for it."""
    form: ChatShape = shape or PLAIN
    return replace(form, reasoning="reasoning_details") if request.body.get("reasoning_split") else form


class OpenAIChat:
    """Parses requests for `/chat/completions` and writes its replies."""

    name = "openai_chat"
    stream_type = "text/event-stream"
    finish_mark = b'"finish_reason": "'
    error = (
        b'data: {"error": {"message": "The server is overloaded.", "type": "server_error", "code": "overloaded"}}\n\n'
    )

    def parse(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Request:
        """Return the request in the common form."""
        tools = body.get("tools") or []
        functions = [tool.get("function") or {} for tool in tools]
        return Request(
            path=path,
            headers=headers,
            body=body,
            model=str(body.get("model", "")),
            messages=tuple(_message(raw) for raw in body.get("messages") or ()),
            tools=tuple(
                Tool(str(function.get("name", "")), function.get("parameters"), raw)
                for function, raw in zip(functions, tools, strict=True)
            ),
            tool_choice=body.get("tool_choice"),
            response_format=body.get("response_format"),
            stream=bool(body.get("stream")),
        )

    def whole(self, reply: Reply, request: Request, shape: Any) -> Answer:
        """Return a completion."""
        form = _form(request, shape)
        reply = _thinking(reply, form)
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            message["tool_calls"] = [
                {key: value for key, value in _whole_call(call, at, request, form).items() if key != "index"}
                for at, call in enumerate(reply.calls)
            ]
            if form.object_arguments:
                for raw, call in zip(message["tool_calls"], reply.calls, strict=True):
                    raw["function"]["arguments"] = call.parsed()
        if reply.reasoning:
            _add_reasoning(message, reply.reasoning, form)
        choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
        body = {**_head("chat.completion", request, form), "choices": [choice], "usage": _usage(reply.usage, form)}
        return Answer(200, json.dumps(body).encode())

    def stream(self, reply: Reply, request: Request, shape: Any) -> Iterator[bytes]:
        """Yield the events of a streamed completion."""
        form = _form(request, shape)
        reply = _thinking(reply, form)
        yield from form.opening
        head = _head("chat.completion.chunk", request, form)
        asked = bool((request.body.get("stream_options") or {}).get("include_usage"))
        with_usage = asked or form.usage_unasked
        deltas = list(_deltas(reply, request, form))
        finish_with_calls = form.calls == "bare" and bool(reply.calls)
        if not finish_with_calls:
            deltas.append({} if form.finish_apart or reply.calls or not deltas else {"content": ""})
        for at, delta in enumerate(deltas):
            last = at == len(deltas) - 1
            choice: dict[str, Any] = {"index": 0, "delta": delta}
            if last:
                choice["finish_reason"] = _finish(reply)
            elif form.finish_key:
                choice["finish_reason"] = None
            chunk = {**head, "choices": [choice]}
            if with_usage and form.usage == "cumulative":
                share = (at + 1) / len(deltas)
                partial = Usage(reply.usage.input, max(1, int(reply.usage.output * share)), reply.usage.cached)
                chunk["usage"] = _usage(reply.usage if last else partial, form)
            elif with_usage and last and form.usage in ("with_finish", "twice"):
                chunk["usage"] = _usage(reply.usage, form)
                if form.usage == "twice":
                    chunk["x_groq"] = {"id": "req_1", "usage": chunk["usage"]}
            elif asked and form.usage == "last":
                chunk["usage"] = None
            yield _event(chunk)
        if with_usage and form.usage == "last":
            yield _event({**head, "choices": [], "usage": _usage(reply.usage, form)})
        if form.done:
            yield b"data: [DONE]\n\n"

    def plain(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request with one question."""
        return "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "hi"}]}

    def listing(self, path: str, models: tuple[str, ...], window: int | None) -> Answer | None:
        """Answer the list of models."""
        if not path.rstrip("/").endswith("/models"):
            return None
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "emulator"} for name in models]
        return Answer(200, json.dumps({"object": "list", "data": data}).encode())


def _message(raw: dict[str, Any]) -> Message:
    role = str(raw.get("role", ""))
    content = raw.get("content")
    items = content if isinstance(content, list) else [] if content is None else [{"type": "text", "text": content}]
    parts = [_part(item) for item in items]
    parts += [
        Part("reasoning", str(raw[name]), raw[name])
        for name in _REASONING_FIELDS
        if isinstance(raw.get(name), str) and raw[name]
    ]
    calls = [
        Call(function.get("name", ""), function.get("arguments", ""), str(call.get("id", "")), call)
        for call in raw.get("tool_calls") or ()
        for function in [call.get("function") or {}]
    ]
    role = "system" if role == "developer" else role
    return Message(role, tuple(parts), tuple(calls), str(raw.get("tool_call_id") or ""), raw)


def _part(item: Any) -> Part:
    if isinstance(item, str):
        return Part("text", item, item)
    kind = _KINDS.get(str(item.get("type")), "other")
    if kind == "reasoning":
        return Part(kind, "".join(piece.get("text", "") for piece in item.get("thinking", ())), item)
    return Part(kind, str(item.get("text") or ""), item)


def _head(kind: str, request: Request, form: ChatShape) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": request.model, **(form.extra or {})}


def _thinking(reply: Reply, form: ChatShape) -> Reply:
    needed = form.thinks_before_calls and reply.calls and not reply.reasoning
    return replace(reply, reasoning="I need a tool for this.") if needed else reply


def _finish(reply: Reply) -> str:
    return _FINISH.get(reply.reason, reply.reason)


def _usage(usage: Usage, form: ChatShape) -> dict[str, Any]:
    return form.usage_of(usage) if form.usage_of is not None else openai_usage(usage)


def openai_usage(usage: Usage) -> dict[str, Any]:
    """Return a usage in OpenAI's form, in which cached and reasoning tokens are parts of the two counts."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _whole_call(call: Call, at: int, request: Request, form: ChatShape) -> dict[str, Any]:
    id_ = call.id or form.call_id(call.name, len(request.calls) + at)
    more = form.call_extra(id_, at) if form.call_extra is not None else {}
    return {
        "index": at,
        "id": id_,
        "type": "function",
        "function": {"name": call.name, "arguments": call.as_text()},
        **more,
    }


def _add_reasoning(target: dict[str, Any], text: str, form: ChatShape) -> None:
    if form.reasoning == "reasoning_details":
        target["reasoning"] = text
        target["reasoning_details"] = [{"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}]
    elif form.reasoning == "thinking_parts":
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": text}]}
        content = target.get("content")
        target["content"] = [thinking, {"type": "text", "text": content}] if content else [thinking]
    elif form.reasoning == "think_tags":
        target["content"] = f"<think>\n{text}\n</think>\n\n{target.get('content') or ''}"
    elif form.reasoning is not None:
        target[form.reasoning] = text


def _deltas(reply: Reply, request: Request, form: ChatShape) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if reply.text or not reply.calls else None}
    if reply.reasoning and form.reasoning == "think_tags":
        for piece in pieces(f"<think>\n{reply.reasoning}\n</think>\n\n"):
            yield {"content": piece}
    elif reply.reasoning and form.reasoning is not None:
        for piece in pieces(reply.reasoning):
            delta: dict[str, Any] = {"content": None}
            _add_reasoning(delta, piece, form)
            yield delta
    for piece in pieces(reply.text):
        yield {"content": piece}
    whole = [_whole_call(call, at, request, form) for at, call in enumerate(reply.calls)]
    if form.calls == "bare" and whole:
        bare = [{key: value for key, value in call.items() if key not in ("index", "type")} for call in whole]
        yield {"content": None, "tool_calls": bare}
        return
    for call in whole:
        yield from _call_deltas({**call, "index": call["index"] + (form.calls == "index_one")}, form)


def _call_deltas(call: dict[str, Any], form: ChatShape) -> Iterator[dict[str, Any]]:
    if form.calls in ("whole", "index_zero"):
        yield {"tool_calls": [{**call, "index": 0} if form.calls == "index_zero" else call]}
        return
    function = call["function"]
    opening = {**call, "function": {**function, "arguments": ""}}
    later: dict[str, Any] = {"index": call["index"]}
    if form.calls == "empty_ids":
        later |= {"id": "", "type": "function"}
    if form.calls == "no_index":
        del opening["index"], later["index"]
    if form.calls == "opened_only":
        del later["index"]
    yield {"tool_calls": [opening]}
    for piece in pieces(function["arguments"]):
        yield {"tool_calls": [{**later, "function": {"arguments": piece}}]}


def _event(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()
