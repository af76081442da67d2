"""The newest plan's calls as the messages have them now.

At a breakpoint a person may edit the planned calls: change one, remove it, add another, or answer it.
The messages decide what runs; what the plan knew beyond them (`needs`, a fault) holds for a call that is unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from graph_agent.calls.messages import calls_of
from graph_agent.events.queries import (
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
    """What is left to do of the newest plan."""

    message: AIMessage | None
    """The message that has the calls; None without one."""
    order: list[str]
    """Ids of the calls that can be told apart, in the message's order."""
    open: list[Call]
    """The calls without a result, references not filled in."""
    ready: dict[str, Call]
    """Those of them that can run now, references filled in, by id."""
    answered: dict[str, tuple[Call, ToolMessage]]
    """The calls that a person has answered, and no event tells of yet, by id."""
    removed: list[Call]
    """The planned calls that the message has no more, and no event tells of yet; without their arguments."""
    edited: bool
    """Whether the message's calls are others than the planned ones."""

    def next_calls(self, waiting: Collection[str]) -> list[Call]:
        """The calls that get a task after an edit: those that can run, and those whose answer is to be recorded.

        Args:
            waiting: Ids of the calls that `plan` holds back for others.
        """
        found = {id_: call for id_, (call, _) in self.answered.items()}
        found |= {id_: call for id_, call in self.ready.items() if id_ not in waiting}
        return [found[id_] for id_ in self.order if id_ in found]


def current_wave(state: Mapping[str, Any]) -> CurrentWave:
    """Compare the newest plan with the messages; reads no further back than that plan.

    Args:
        state: The `FIELDS`, each of which may be missing.
    """
    message, results = newest_calls(state.get("messages", ()))
    told = since_plan(state.get("events", ()))
    ready: list[Call] = state.get("ready") or []
    waiting: list[Call] = state["loop"]["waiting"] if "loop" in state else []
    planned = {call["id"]: call for call in [*ready, *waiting]}
    recorded = recorded_ids(told)
    given = calls_of(message) if message is not None else []
    calls: dict[str, Call] = {}
    for call in given:
        if call["id"]:
            calls.setdefault(call["id"], call)
    answered = {
        id_: (call, results[id_])
        for id_, call in calls.items()
        if id_ in results and id_ not in recorded and id_ in planned
    }
    values = results_of_wave(told) | {
        id_: result_value(result.content) for id_, (_, result) in answered.items() if result.status == "success"
    }
    failed = failed_ids(told) | {id_ for id_, (_, result) in answered.items() if result.status == "error"}
    structured = is_structured(told)
    found: list[Call] = []
    runnable: dict[str, Call] = {}
    edited = len(calls) < len(given)
    for id_, call in calls.items():
        if id_ in results:
            continue
        known = planned.get(id_)
        if known is not None and _is_unchanged(call, known, values if structured else None):
            found.append({**known, "arguments": call["arguments"]})
            if known in ready:
                runnable[id_] = known
        else:
            edited = True
            needs = _needs(call, known, calls) if structured else []
            found.append({**call, "needs": needs} if needs else call)
    rest = [call for call in found if call["id"] not in runnable]
    chosen = select(rest, values, failed) if structured else Selection(rest, [], [])
    runnable |= {call["id"]: call for call in chosen.ready}
    removed = [
        Call(id=call["id"], name=call["name"], arguments={})
        for entry in told[:1]
        for call in entry.get("calls", ())
        if call["id"] not in calls and call["id"] not in recorded and call["id"] in planned
    ]
    return CurrentWave(message, list(calls), found, runnable, answered, removed, edited or bool(removed))


def newest_calls(messages: Sequence[AnyMessage]) -> tuple[AIMessage | None, dict[str, ToolMessage]]:
    """The model's newest message, and the results after it, by call id; None without such a message."""
    results: dict[str, ToolMessage] = {}
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message, results
        if isinstance(message, ToolMessage):
            results[message.tool_call_id] = message
    return None, results


def _is_unchanged(call: Call, known: Call, values: Mapping[str, Any] | None) -> bool:
    """Whether a person left a call as it was planned; `values` are what its references may have found."""
    if call["name"] != known["name"] or "fault" in call:
        return False
    if call["arguments"] == known["arguments"]:
        return True
    try:
        return values is not None and resolve(call["arguments"], values) == known["arguments"]
    except BadReferenceError:
        return False


def _needs(call: Call, known: Call | None, calls: Collection[str]) -> list[str]:
    """What an edited call waits for: the calls that its references name, and those of its plan that are still there."""
    kept = [need for need in known.get("needs", ()) if need in calls] if known is not None else []
    try:
        return list(dict.fromkeys([*kept, *referenced_ids(call["arguments"])]))
    except BadReferenceError:
        return kept  # the same error becomes its result
