"""One line of text for each event of a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from graph_agent._internal.redaction import mask_named_secrets
from graph_agent._internal.text import text_of

_LENGTH = 200
"""Maximum characters of an event's content in its line."""


def event_line(event: Mapping[str, Any]) -> str:
    """Return an event as one line: number, local time, step, type and content; control characters are kept.

    Args:
        event: An event as read, with its `seq`.
    """
    at = datetime.fromisoformat(event["ts"]).astimezone().strftime("%H:%M:%S")
    step = f"step {event['step']}" if event["step"] else ""
    return f"{event['seq']:>4}  {at}  {step:<7} {event['type']:<20} {_content(event)}".rstrip()


def compact(value: Any) -> str:
    """Return a JSON value as text of at most 200 characters, with `…` if it is cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(text[: 10 * _LENGTH].split())
    return line if len(line) <= _LENGTH else f"{line[: _LENGTH - 1]}…"


def _content(event: Mapping[str, Any]) -> str:
    match event["type"]:
        case "user_message" | "steering" | "agent_response":
            return compact(text_of(event["content"]))
        case "plan":
            return compact(event["action"])
        case "tool_call":
            return f"{event['name']} {compact(event['arguments'])}"
        case "tool_result":
            return f"{event['name']} {event['status']}: {compact(text_of(event['content']))}"
        case "delegation_request":
            return f"{event['target']}: {compact(event['task'])}"
        case "delegation_response":
            return f"{event['target']} {event['status']}: {compact(text_of(event['content']))}"
        case "status":
            return f"{event['from']} -> {event['to']}"
        case "warning" | "error":
            return compact(mask_named_secrets(event["message"]))
        case _:
            own = {name: value for name, value in event.items() if name not in _COMMON}
            return compact(own) if own else ""


_COMMON = frozenset({"type", "seq", "ts", "session_id", "step"})
