"""Requests decisions on calls in the `plan` node, and applies them to the wave."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage, ToolCall, ToolMessage

from graph_agent.approvals.requests import HeldCall
from graph_agent.execution.approvals import held_calls
from graph_agent.execution.current_wave import newest_calls
from graph_agent.runs.run import WorkStoppedError
from graph_agent.state.call_events import answer_event, approval_progress, is_structured, since_plan
from graph_agent.state.events import StoredEvent, is_own, request_event
from graph_agent.types import HIDDEN_ID_PREFIX
from graph_agent.waves.references import escaped

if TYPE_CHECKING:
    from graph_agent.planning.update import PlanUpdate
    from graph_agent.types import Call
    from graph_agent.waves.schema import Selection

_STOPPED = "Not run: the run was stopped before the approval policy had decided."
REJECTED = "Not run: a person rejected this call."
_SHOWN_CHARS = 500
"""Characters of a call's arguments in a notice."""
_NO_REASON = "Do not repeat it unless the user asks for it."


async def start_calls(
    update: PlanUpdate, calls: Sequence[Call], chosen: Selection, wave: Sequence[StoredEvent] | None = None
) -> None:
    """Run the calls of a wave that can run now, except for those that a person must approve first.

    A call whose arguments do not fit its tool is not put before a person: its error goes back to the model.

    A person is asked once no other call of the wave can run, about all calls that need approval by then, and at the
    same time about what the wave's delegations ask. So a resume repeats no call.

    Args:
        update: The pass through `plan`.
        calls: The calls that `chosen` was selected from, references not resolved.
        chosen: Their selection.
        wave: Same as for `PlanUpdate.make_ready`.
    """
    if update.deps.wrap_tool_call is None:
        # Middleware may change a call, or run one of an unknown name.
        chosen = replace(chosen, ready=[*map(update.deps.toolbox.checked, chosen.ready)])
    held: list[HeldCall] = []
    if update.settings.approve is not None:
        policy = held_calls(chosen.ready, wave or (), update.deps, update.settings)
        try:
            held = await update.run.stoppable(policy, "An approval policy")
        except (WorkStoppedError, asyncio.CancelledError) as stopped:
            # Without a decision no call may run, and each needs a result.
            update.skip([(call, _STOPPED) for call in [*chosen.ready, *chosen.waiting]])
            update.loop["waiting"] = []
            if not isinstance(stopped, WorkStoppedError):
                raise
            update.stop_at_abort_or_deadline()
            return
    if not held:
        update.make_ready([*update.waiting_delegations, *chosen.ready], wave)
        return
    # Imported here: it loads a validator. In a thread, because a schema of others may take long to check.
    from graph_agent.tools.edits import planned_fault

    check = partial(planned_fault, update.deps.toolbox)
    faults = {call["id"]: await asyncio.to_thread(check, call["name"], call["arguments"]) for call in held}
    ready: list[Call] = [
        {**call, "fault": fault} if (fault := faults.get(call["id"])) else call for call in chosen.ready
    ]
    held = [call for call in held if not faults[call["id"]]]
    ids = {call["id"] for call in held}
    waiting = ids | {call["id"] for call in chosen.waiting}
    update.loop["waiting"] = [call for call in calls if call["id"] in waiting]
    if free := [call for call in ready if call["id"] not in ids]:
        update.make_ready([*update.waiting_delegations, *free], wave)
    else:
        _ask(update, held, wave or ())


def _ask(update: PlanUpdate, held: list[HeldCall], wave: Sequence[StoredEvent]) -> None:
    step = update.loop["step"]
    update.make_ready(update.waiting_delegations, wave)
    update.loop["awaiting_approval"] = held
    update.events.append(request_event(held, step))
    for call in held:
        update.task.runtime.stream_writer(approval_progress(call["name"], step))


def apply_decisions(update: PlanUpdate) -> None:
    """Apply a person's decisions: replace edited calls in the messages, and add the results of calls that do not run.

    Approved calls, edited calls and undecided calls stay open.
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
            update.history = [*update.history, result]
            update.events.append(recorded)


def report_edits(update: PlanUpdate) -> None:
    """Send the model a notice of the calls of the finished wave that a person edited; no chat window shows it.

    The messages hold the edited calls only, so that the model would otherwise take them for its own.
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
    text = update.deps.prompts.render("edited_calls", edits=edits)
    message = HumanMessage(text, id=f"{HIDDEN_ID_PREFIX}{uuid.uuid4()}")
    update.add_message(message)
    update.history = [*update.history, message]


def _shown(name: str, arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return f"{name} {text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + '…'}"


def _newest_decisions(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the decisions on the newest request."""
    found: list[StoredEvent] = []
    for entry in reversed(events):
        if is_own(entry, "approval_request"):
            break
        if is_own(entry, "approval_decision"):
            found.append(entry)
    return found[::-1]


def _edited(call: ToolCall, edits: dict[str, dict[str, Any]], *, literal: bool) -> ToolCall:
    edit = edits.get(call["id"] or "")
    if edit is None:
        return call
    # A person reads and writes values, so that `${` in them starts no reference.
    arguments = escaped(edit["arguments"]) if literal else edit["arguments"]
    return {**call, "name": edit.get("edited_name", call["name"]), "args": arguments}


def _result(decision: StoredEvent, step: int) -> tuple[ToolMessage, StoredEvent]:
    id_, name, message = decision["id"], decision["name"], decision.get("message")
    if decision["decision"] == "reject":
        reason = f"Reason: {message}" if message else _NO_REASON
        result = ToolMessage(f"{REJECTED} {reason}", tool_call_id=id_, name=name, status="error")
    else:
        result = ToolMessage(message or "", tool_call_id=id_, name=name, status="success")
    call: Call = {"id": id_, "name": name, "arguments": {}}
    return result, answer_event(call, result, step, decision["decided_by"])
