"""Converts requests and decisions to text and back, for clients that only exchange messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from graph_agent.base._internal.text import excerpt, visible, visible_json
from graph_agent.base.approvals.requests import HeldCall, calls_of_request
from graph_agent.base.errors import DecisionError

_APPROVAL = re.compile(r"(?:approved?|yes|y|ok|okay)[.!]?", re.IGNORECASE)
_REJECTION = re.compile(
    r"(?:reject(?:ed)?|deny|denied|no|n)[.!]?(?:\s*[:,;]\s*(?P<message>.+))?", re.IGNORECASE | re.DOTALL
)
_RESPONSE = re.compile(r"respond\s*:\s*(?P<message>.+)", re.IGNORECASE | re.DOTALL)
_EDIT = re.compile(r"edit\s*:\s*(?P<arguments>\{.*\})", re.IGNORECASE | re.DOTALL)
_LINE = re.compile(r"(?P<call>\S+?)\s*[:.)]\s+(?P<decision>.+)")
_FENCE = "```"


def question_text(request: Mapping[str, Any], *, by_text: bool = True) -> str:
    """Return an `ApprovalRequest` as text: a numbered list of the calls with all their arguments, and how to answer.

    A person approves what is shown, so nothing is shortened, and invisible characters are shown as escapes. The error
    of the previous answer follows the calls. How to answer is left out if this error ends with it.

    Args:
        request: The request.
        by_text: Whether the person answers by text, so that the text explains how.
    """
    calls = calls_of_request(request)
    lines = ["A call waits for approval:" if len(calls) == 1 else f"{len(calls)} calls wait for approval:"]
    for number, call in enumerate(calls, 1):
        lines.append(f"{number}. {visible(call['name'])} {visible_json(call['arguments'])}")
        # Indented, so that no line of it looks like a call or an explanation.
        lines += [f"   {visible(line)}" for line in call.get("description", "").splitlines()]
    error, how = request.get("error"), how_to_answer(calls)
    if error is not None:
        lines.append(f"The last answer was not accepted: {error}")
    if by_text and (error is None or not error.endswith(how)):
        lines.append(how)
    return "\n".join(lines)


def parse_answer(text: str) -> Any:
    """Parse a person's answer to a question that is no approval: the value of a JSON object or array, any other text
    unchanged, also JSON that is nested too deeply to be parsed."""
    if text.strip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def how_to_answer(calls: Sequence[HeldCall]) -> str:
    """Return a sentence that explains, for a person, how to decide on calls in text.

    It lists the decisions that at least one of the calls allows.
    """
    allowed = {kind for call in calls for kind in call["allowed_decisions"]}
    forms = {
        "approve": '"approve"',
        "reject": '"reject", "reject: <reason>"',
        "edit": '"edit: {<all arguments as JSON>}"',
        "respond": '"respond: <the result>"',
    }
    words = ", ".join(text for kind, text in forms.items() if kind in allowed)
    if len(calls) == 1:
        return f"Answer with one of: {words}."
    return f'Answer with one line for each call, such as "1: approve", or with one line for all. Decisions: {words}.'


def decisions_in_text(text: str, calls: Sequence[HeldCall]) -> Any:
    """Parse a person's message as decisions, in a form that `read_decisions` accepts.

    The message is JSON, or one decision for all calls such as `approve` or `reject: <reason>`, or one line `<number or
    id>: <decision>` for each decided call. A text counts only if it is a decision as a whole: "yes, but use another
    file" is refused.

    Args:
        text: The message; a Markdown code block around it is removed.
        calls: The calls of the request, numbered from 1 in this order.

    Returns:
        For one decision: that decision, such as `{"type": "approve"}`. For lines: a mapping of call id → decision. For
        JSON: its value, or the value of its key `decisions`.

    Raises:
        DecisionError: The text is empty or invalid JSON, one line is no decision or names no call, or a call is decided
            twice.
    """
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) >= 2 * len(_FENCE):
        text = text[len(_FENCE) : -len(_FENCE)].removeprefix("json").strip()
    if text.startswith(("{", "[")):
        return _json_answer(text, calls)
    if (decision := _decision(text)) is not None:
        return decision
    by_id: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        found = _LINE.fullmatch(line)
        id_ = _call_id(found["call"], calls) if found is not None else None
        decision = _decision(found["decision"]) if found is not None else None
        # A text that is understood only in part might approve what the person did not mean.
        if id_ is None or decision is None or id_ in by_id:
            raise _no_decision(text, calls)
        by_id[id_] = decision
    if not by_id:
        raise _no_decision(text, calls)
    return by_id


def _json_answer(text: str, calls: Sequence[HeldCall]) -> Any:
    """Return the value of JSON text; if it is an object with the key `decisions`, the value of that key.

    Raises `DecisionError` if the text is not valid JSON. `calls` are those of the request, for the explanation in the
    error.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecisionError(f"The answer is no valid JSON: {error}. {how_to_answer(calls)}") from None
    return given["decisions"] if isinstance(given, dict) and "decisions" in given else given


def _decision(text: str) -> dict[str, Any] | None:
    """Parse one decision from a text, such as `yes`, `reject: <reason>`, `respond: <text>` or `edit: {…}`.

    Returns None for any other text, and for an edit whose arguments are no valid JSON.
    """
    if _APPROVAL.fullmatch(text):
        return {"type": "approve"}
    if (found := _REJECTION.fullmatch(text)) is not None:
        return {"type": "reject"} if found["message"] is None else {"type": "reject", "message": found["message"]}
    if (found := _RESPONSE.fullmatch(text)) is not None:
        return {"type": "respond", "message": found["message"]}
    if (found := _EDIT.fullmatch(text)) is not None:
        try:
            return {"type": "edit", "edited_action": {"args": json.loads(found["arguments"])}}
        except (ValueError, RecursionError):
            return None
    return None


def _call_id(key: str, calls: Sequence[HeldCall]) -> str | None:
    """Return the id of the call to which a person refers by `key`; None if there is none.

    `key` is the number of the call in the question, counted from 1, or an id; a number has precedence over an equal id.
    """
    ids = [call["id"] for call in calls]
    # A number first, because the question shows no ids.
    if key.isdecimal() and 1 <= int(key) <= len(ids):
        return ids[int(key) - 1]
    return key if key in ids else None


def _no_decision(text: str, calls: Sequence[HeldCall]) -> DecisionError:
    """Return (not raise) the error for a text without a decision; the message explains how to answer."""
    return DecisionError(f"{excerpt(text)!r} is no decision on the calls that wait. {how_to_answer(calls)}")
