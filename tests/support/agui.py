"""Runs of AG-UI over plain HTTP, read with the models of the Python package."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import httpx
from ag_ui.core import BaseEvent, Event
from pydantic import TypeAdapter

_EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
TURNS = {"TEXT_MESSAGE_CONTENT", "CUSTOM"}
"""Types of which a run has as many as its tokens, or of no interest for the order."""


def user(text: str, id_: str | None = None) -> dict[str, Any]:
    """A user's message."""
    return {"id": id_ or f"u-{uuid.uuid4()}", "role": "user", "content": text}


def body(thread: str, messages: Sequence[Any], *, legacy: bool = False, **fields: Any) -> dict[str, Any]:
    """A run's request, as a client of AG-UI 1.0 sends it, or of 0.0.59."""
    version = {} if legacy else {"protocolVersion": "1.0"}
    whole = {"tools": [], "context": [], "state": {}, "forwardedProps": {}, **version}
    return {"threadId": thread, "runId": str(uuid.uuid4()), "messages": [*messages], **whole, **fields}


def post(http: httpx.Client, thread: str, messages: Sequence[Any], **fields: Any) -> list[dict[str, Any]]:
    """The events of a run, each of which is one of the package's models and equal to it."""
    response = http.post("/agui", json=body(thread, messages, **fields))
    assert response.status_code == 200, response.text
    return parsed(response.text)


def parsed(stream: str) -> list[dict[str, Any]]:
    """The events of a stream."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    for event in events:
        model = _EVENTS.validate_python(event)
        assert isinstance(model, BaseEvent)
        assert model.model_dump(mode="json", by_alias=True) == event
        assert not _undeclared(model), event
    return events


def _undeclared(model: Any) -> list[str]:
    """Fields of a model, and of the models in it, that the protocol does not have."""
    found = [*(model.model_extra or {})]
    for name in type(model).model_fields:
        value = getattr(model, name)
        for each in value if isinstance(value, list) else [value]:
            if hasattr(each, "model_extra"):
                found += _undeclared(each)
    return found


def types(events: Sequence[dict[str, Any]]) -> list[str]:
    """The types of events, in order, without tokens and progress."""
    return [event["type"] for event in events if event["type"] not in TURNS]


def text(events: Sequence[dict[str, Any]]) -> str:
    """The streamed text of a run, its messages divided by a bar."""
    found = [event for event in events if event["type"] in ("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT")]
    return "".join(event.get("delta", "|") for event in found)[1:]


def results(events: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The results of a run's calls, by the ids of the calls."""
    return {each["toolCallId"]: each["content"] for each in events if each["type"] == "TOOL_CALL_RESULT"}


def interrupts(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The interrupts at the end of a run."""
    return list(events[-1]["outcome"]["interrupts"])


def resume(asked: Sequence[dict[str, Any]], *payloads: Any) -> list[dict[str, Any]]:
    """Answers to interrupts, in their order."""
    return [
        {"interruptId": each["id"], "status": "resolved", "payload": payload}
        for each, payload in zip(asked, payloads, strict=True)
    ]
