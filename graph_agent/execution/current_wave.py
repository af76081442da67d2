"""Determines the newest plan's calls after edits of the messages.

At a breakpoint a person may edit the planned calls: change one, remove it, add another, or answer it. The messages
determine the calls that run; `needs` and faults from the plan apply only to unchanged calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from graph_agent.parsing.call import calls_of
from graph_agent.state.call_events import (
    failed_ids,
    is_structured,
    recorded_ids,
    result_value,
    results_of_wave,
    since_plan,
)
from graph_agent.types import Call
from graph_agent.waves.references import BadReferenceError, referenced_ids, resolve
from graph_agent.waves.schema import Selection, select

FIELDS = ("messages", "events", "ready", "loop")
"""The state fields that `current_wave` reads."""


@dataclass(frozen=True, slots=True)
class CurrentWave:
    """The calls of the newest plan that are not finished."""

    message: AIMessage | None
    """The message with the calls; None without one."""
    order: list[str]
    """Distinct, nonempty call ids, in the message's order."""
    open: list[Call]
    """The calls without a result, references not resolved."""
    ready: dict[str, Call]
    """Open calls that can run now, references resolved, by id."""
    answered: dict[str, tuple[Call, ToolMessage]]
    """Calls answered by a person without a recorded event, by id."""
    removed: list[Call]
    """Planned calls missing from the message without a recorded event; their arguments are empty."""
    edited: bool
    """Whether the message's calls differ from the planned ones."""

    def next_calls(self, waiting: Collection[str]) -> list[Call]:
        """Return the calls that get a task after an edit: those that can run, and those with an answer to record.

        Args:
            waiting: Ids of the calls that `plan` holds back until others finish.
        """
        found = {id_: call for id_, (call, _) in self.answered.items()}
        found |= {id_: call for id_, call in self.ready.items() if id_ not in waiting}
        return [found[id_] for id_ in self.order if id_ in found]


def current_wave(state: Mapping[str, Any]) -> CurrentWave:
    """Compare the newest plan with the messages; older history is not read.

    Args:
        state: The `FIELDS`; each may be missing.
    """
    message, results = newest_calls(state.get("messages", ()))
    events = since_plan(state.get("events", ()))
    ready: list[Call] = state.get("ready") or []
    waiting: list[Call] = state["loop"]["waiting"] if "loop" in state else []
    planned = {call["id"]: call for call in [*ready, *waiting]}
    ready_ids = {call["id"] for call in ready} - {call["id"] for call in waiting}
    recorded = recorded_ids(events)
    message_calls = calls_of(message) if message is not None else []
    calls: dict[str, Call] = {}
    for call in message_calls:
        if call["id"]:
            calls.setdefault(call["id"], call)
    answered = {
        id_: (call, results[id_])
        for id_, call in calls.items()
        if id_ in results and id_ not in recorded and id_ in planned
    }
    values = results_of_wave(events) | {
        id_: result_value(result.content) for id_, (_, result) in answered.items() if result.status == "success"
    }
    failed = failed_ids(events) | {id_ for id_, (_, result) in answered.items() if result.status == "error"}
    structured = is_structured(events)
    open_calls: list[Call] = []
    runnable: dict[str, Call] = {}
    edited = len(calls) < len(message_calls)
    for id_, call in calls.items():
        if id_ in results:
            continue
        known = planned.get(id_)
        if known is not None and _is_unchanged(call, known, values if structured else None):
            open_calls.append({**known, "arguments": call["arguments"]})
            if id_ in ready_ids:
                runnable[id_] = known
        else:
            edited = True
            needs = _needs(call, known, calls) if structured else []
            open_calls.append({**call, "needs": needs} if needs else call)
    rest = [call for call in open_calls if call["id"] not in runnable]
    chosen = select(rest, values, failed) if structured else Selection(rest, [], [])
    runnable |= {call["id"]: call for call in chosen.ready}
    removed = [
        Call(id=call["id"], name=call["name"], arguments={})
        for entry in events[:1]
        for call in entry.get("calls", ())
        if call["id"] not in calls and call["id"] not in recorded and call["id"] in planned
    ]
    return CurrentWave(message, list(calls), open_calls, runnable, answered, removed, edited or bool(removed))


def newest_calls(messages: Sequence[AnyMessage]) -> tuple[AIMessage | None, dict[str, ToolMessage]]:
    """Return the model's newest message (None if there is none) and the results after it, by call id."""
    results: dict[str, ToolMessage] = {}
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message, results
        if isinstance(message, ToolMessage):
            results[message.tool_call_id] = message
    return None, results


def _is_unchanged(call: Call, known: Call, values: Mapping[str, Any] | None) -> bool:
    """Whether a call equals its plan; `values` are the results that its references may have resolved to."""
    if call["name"] != known["name"] or "fault" in call:
        return False
    if call["arguments"] == known["arguments"]:
        return True
    try:
        return values is not None and resolve(call["arguments"], values) == known["arguments"]
    except BadReferenceError:
        return False


def _needs(call: Call, known: Call | None, calls: Collection[str]) -> list[str]:
    """Return the needs of an edited call: the calls in its references, and its planned needs that still exist."""
    kept = [need for need in known.get("needs", ()) if need in calls] if known is not None else []
    try:
        return list(dict.fromkeys([*kept, *referenced_ids(call["arguments"])]))
    except BadReferenceError:
        return kept  # the same error becomes its result
