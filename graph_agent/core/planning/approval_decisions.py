"""Applies a person's decisions on the calls of a plan, and reports edited calls to the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import ToolCall, ToolMessage

from graph_agent.base._internal.text import excerpt
from graph_agent.base.approvals.requests import HeldCall
from graph_agent.base.history.call_events import answer_event, is_structured, since_plan
from graph_agent.base.history.events import StoredEvent, is_own
from graph_agent.base.types import Call
from graph_agent.base.waves.references import escaped
from graph_agent.core.execution.open_calls import newest_calls
from graph_agent.core.planning.update import PlanUpdate

REJECTED = "Not run: a person rejected this call."
"""Beginning of the result of a rejected call, for the model."""
_SHOWN_CHARS = 500
"""Maximum characters of a call's arguments in a notice."""
_NO_REASON = "Do not repeat it unless the user asks for it."


def apply_decisions(update: PlanUpdate) -> None:
    """Apply a person's newest decisions to the history: edited calls replace the planned ones, and calls that do not
    run get results.

    A rejection gives an error result with the person's reason, a response its text as the result; both add a result
    event. Approved, edited and undecided calls stay open. Does nothing if no call waits for a decision
    (`awaiting_approval`).
    """
    if not update.loop.get("awaiting_approval"):
        return
    decisions = _newest_decisions(update.state["events"])
    edits = {entry["id"]: entry for entry in decisions if entry["decision"] == "edit"}
    message, _ = newest_calls(update.history)
    if edits and message is not None:
        literal = is_structured(since_plan(update.state["events"]))
        calls = [_edited(call, edits, literal=literal) for call in message.tool_calls]
        edited = message.model_copy(update={"tool_calls": calls})
        update.replace_history([edited if one is message else one for one in update.history])
    for entry in decisions:
        if entry["decision"] in ("reject", "respond"):
            result, recorded = _result(entry, update.loop["step"])
            update.add_message(result)
            update.events.append(recorded)


def report_edits(update: PlanUpdate) -> None:
    """Add a notice for the model that lists the planned calls and those that ran, if a person edited calls of the
    finished wave; without edits, do nothing. The messages hold only the edited calls, so the model would otherwise take
    them for its own.
    """
    requested: dict[str, HeldCall] = {}
    edits: list[dict[str, str]] = []
    for entry in since_plan(update.state["events"]):
        if is_own(entry, "approval_request"):
            requested |= {call["id"]: call for call in entry["calls"]}
        elif is_own(entry, "approval_decision") and entry["decision"] == "edit":
            planned = requested[entry["id"]]
            ran = _shown(entry.get("edited_name", planned["name"]), entry["arguments"])
            edits.append({"planned": _shown(planned["name"], planned["arguments"]), "ran": ran})
    if not edits:
        return
    update.add_notice(update.deps.prompts.render("edited_calls", edits=edits))


def _shown(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as text: its name and the beginning of its arguments as JSON."""
    return f"{name} {excerpt(json.dumps(arguments, ensure_ascii=False), _SHOWN_CHARS)}"


def _newest_decisions(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return this agent's decision events since its newest approval request, or all without one, oldest first.

    Requests and decisions about calls of delegates are left out.
    """
    found: list[StoredEvent] = []
    for entry in reversed(events):
        if is_own(entry, "approval_request"):
            break
        if is_own(entry, "approval_decision"):
            found.append(entry)
    return found[::-1]


def _edited(call: ToolCall, edits: dict[str, dict[str, Any]], *, literal: bool) -> ToolCall:
    """Return a copy of a call with the name and arguments of a person's edit; the call itself if it was not edited.

    Args:
        call: The call of the model's message.
        edits: Call id → `approval_decision` event with the edit.
        literal: Whether arguments of this plan may hold references, so that `${` in edited values is escaped.
    """
    edit = edits.get(call["id"] or "")
    if edit is None:
        return call
    # A person reads and writes values, so that `${` in them starts no reference.
    arguments = escaped(edit["arguments"]) if literal else edit["arguments"]
    return {**call, "name": edit.get("edited_name", call["name"]), "args": arguments}


def _result(decision: StoredEvent, step: int) -> tuple[ToolMessage, StoredEvent]:
    """Return the message and the result event of a call that a person rejected or responded to.

    A rejection gives a message of status `error` with the person's reason, or advice not to repeat the call; a response
    gives one of status `success` with its text, or an empty one if it has none.

    Args:
        decision: The `approval_decision` event.
        step: Number of the plan, for the event.
    """
    id_, name, message = decision["id"], decision["name"], decision.get("message")
    if decision["decision"] == "reject":
        reason = f"Reason: {message}" if message else _NO_REASON
        result = ToolMessage(f"{REJECTED} {reason}", tool_call_id=id_, name=name, status="error")
    else:
        result = ToolMessage(message or "", tool_call_id=id_, name=name, status="success")
    call: Call = {"id": id_, "name": name, "arguments": {}}
    return result, answer_event(call, result, step, decision["decided_by"])
