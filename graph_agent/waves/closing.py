"""The answer inside a structured plan that a model sends although an answer is asked for, or that was cut off."""

from __future__ import annotations

import json
import re
from typing import Any

from graph_agent.calls.lenient_json import parse_lenient_json

_STATUS = ("continue", "done")
_KEYS = {"status", "tools", "action", "slots", "reasoning", "answer"}
_BEGINS_LIKE_A_PLAN = re.compile(r"""\{\s*["']?status["']?\s*:\s*["'](?:continue|done)["']\s*,""")
_FENCE = re.compile(r"\A(?:`{3,}|~{3,})[\w-]*+\s*+(?=\{)")
_FENCE_END = re.compile(r"\A(?:`{3,}|~{3,})\s*+")
_HALF_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*+)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HALF_PAIR = re.compile(r"(?<!\\)((?:\\\\)*+)\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_MOST_PLANS = 20
_decoder = json.JSONDecoder(strict=False)


def answer_of_plans(text: str) -> str | None:
    """Return the answer of a text that begins with a structured plan, also fenced, damaged or cut off.

    Args:
        text: The text, without reasoning.

    Returns:
        The plan's `answer` and the prose after the plan; empty without both. None if the text begins with no plan.
    """
    parts, rest = list[str](), text.strip()
    for count in range(_MOST_PLANS):
        fence = _FENCE.match(rest)
        body = rest[fence.end() :] if fence else rest
        if (found := _first_plan(body)) is None:
            if count == 0:
                return None
            break
        plan, end = found
        answer = plan.get("answer") or ""
        if not isinstance(answer, str):
            return None
        parts.append(answer.strip())
        rest = body[end:].strip()
        rest = _FENCE_END.sub("", rest) if fence else rest
    return "\n\n".join(dict.fromkeys(filter(None, [*parts, rest])))


def partial_answer(text: str) -> str | None:
    """Return the answer that a cut-off plan without calls has begun; None if it has begun none.

    Args:
        text: The text, without reasoning. Its list of calls must be closed: the end of an open one is unknown.
    """
    plan = _completed(_FENCE.sub("", text.strip()))
    if plan is None or plan.get("status") not in _STATUS or plan.get("tools") != []:
        return None
    answer = plan.get("answer")
    return answer if isinstance(answer, str) and answer.strip() else None


def _first_plan(text: str) -> tuple[dict[str, Any], int] | None:
    """Return the plan at the start of a text, and the index after it."""
    if not text.startswith("{"):
        return None
    try:
        value, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        value, end = _completed(text), len(text)
        if value is None and _BEGINS_LIKE_A_PLAN.match(text):
            return _repaired(text)
    return (value, end) if isinstance(value, dict) and _is_plan(value) else None


def _repaired(text: str) -> tuple[dict[str, Any], int]:
    """Return the damaged plan at the start of a text, and the index after it; empty if it cannot be repaired."""
    try:
        value = parse_lenient_json(text)
    except ValueError:
        value = None
    return (value, text.rfind("}") + 1) if isinstance(value, dict) and "}" in text else ({}, len(text))


def _completed(text: str) -> dict[str, Any] | None:
    """Return the JSON object of which a text is the beginning, cut off inside or after one of its own strings."""
    whole = _HALF_PAIR.sub(r"\1", _HALF_ESCAPE.sub(r"\1", text))
    for candidate in (text, text + "}", whole + '"}'):
        try:
            value, _ = _decoder.raw_decode(candidate)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else None
    return None


def _is_plan(value: Any) -> bool:
    """Whether a value is a plan, not a JSON object that the user asked for."""
    if not isinstance(value, dict):
        return False
    tools, has_status = value.get("tools"), value.get("status") in _STATUS
    if isinstance(tools, list) and all(isinstance(call, dict) and "tool" in call for call in tools):
        return has_status or value.keys() <= _KEYS
    return has_status and value.keys() <= _KEYS
