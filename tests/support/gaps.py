"""Histories with gaps between the recorded work, and the kinds of the gaps: for the command line and the page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any


def moment(at_s: float) -> str:
    """The time of an event, in seconds after the first one."""
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)).isoformat(timespec="microseconds")


def asked(at_s: float, **fields: Any) -> dict[str, Any]:
    """The record of a model call of half a second."""
    return {"purpose": "plan", "model": "m", "started": moment(at_s), "duration_s": 0.5, **fields}


def history(*entries: tuple[float, str, dict[str, Any]], end_s: float) -> list[dict[str, Any]]:
    """The events of an input with a plan at half a second and a call of `look_up`, further events, and an answer."""
    call = {"id": "c1", "name": "look_up"}
    plan = {"status": "continue", "action": "work", "reasoning": ""}
    found = {"status": "success", "content": "found", "truncated": False, "queued_s": 0.0}
    fields: dict[str, dict[str, Any]] = {
        "plan": {**plan, "calls": []},
        "tool_call": {**call, "arguments": {}},
        "tool_result": {**call, **found, "duration_s": 0.5},
    }
    every: list[tuple[float, str, dict[str, Any]]] = [
        (0, "user_message", {"content": "go"}),
        (0.5, "plan", {**plan, "calls": [call], "model_calls": [asked(0)]}),
        (0.5, "tool_call", {}),
        *entries,
        (end_s, "agent_response", {"content": "Found."}),
        (end_s, "status", {"from": "RUNNING", "to": "COMPLETED"}),
    ]
    return [
        {"seq": seq, "type": type_, "ts": moment(at_s), "step": 1 + (at_s > 1), **fields.get(type_, {}), **own}
        for seq, (at_s, type_, own) in enumerate(every)
    ]


RESULT: tuple[float, str, dict[str, Any]] = (1, "tool_result", {})
CASES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "a failed request is sent again after half a minute": (
        history(RESULT, (32, "plan", {"model_calls": [asked(1, error="transient"), asked(31.5)]}), end_s=32),
        ["retry"],
    ),
    "another model is asked at once": (
        history(RESULT, (2, "plan", {"model_calls": [asked(1, error="transient"), asked(1.5)]}), end_s=2),
        [],
    ),
    "a model call is repeated after a crash": (
        history(RESULT, (61, "plan", {"model_calls": [asked(60.5)], "resumed_at": moment(60.4)}), end_s=61),
        ["interrupted"],
    ),
    "a reading call is repeated after a crash, with a second crash": (
        history(
            (60, "tool_result", {"resumed_at": moment(59)}),
            (91, "plan", {"model_calls": [asked(90.5)], "resumed_at": moment(90)}),
            end_s=91,
        ),
        ["interrupted", "interrupted"],
    ),
    "a resumed run tries a request again": (
        history(
            RESULT,
            (91, "plan", {"model_calls": [asked(60.1, error="timeout"), asked(90.5)], "resumed_at": moment(60)}),
            end_s=91,
        ),
        ["interrupted", "retry"],
    ),
    "a hook takes its time, or an older version was resumed": (
        history(RESULT, (61.5, "plan", {"model_calls": [asked(61)]}), end_s=61.5),
        ["idle"],
    ),
    "a tool asks a person": (
        history(
            (3600, "tool_result", {"waited_s": 3598.0}), (3601, "plan", {"model_calls": [asked(3600)]}), end_s=3601
        ),
        ["person"],
    ),
    "nothing is missing": (history(RESULT, (1.6, "plan", {"model_calls": [asked(1)]}), end_s=1.6), []),
}
"""What happened → the events, and the kinds of the gaps and waits, oldest first."""
