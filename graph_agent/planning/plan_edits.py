"""Applies a person's edits of the newest plan while the graph was interrupted, and the effects after a wave.

The tasks of a resumed wave run their calls as stored in the messages. This module handles the rest: calls without a
task, results without an event, and a message that providers would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.types import Command

from graph_agent._internal.text import to_json_safe
from graph_agent.execution.current_wave import CurrentWave, current_wave
from graph_agent.execution.settlement import removed_events, results_in_order
from graph_agent.models.sanitize import without_call_blocks
from graph_agent.models.stream_filters import is_blank
from graph_agent.planning.approvals import apply_decisions
from graph_agent.planning.reply import read_reply
from graph_agent.planning.update import PlanUpdate
from graph_agent.state.call_events import Handoff, answer_event, answers_of_wave, since_plan
from graph_agent.state.channels import status_event
from graph_agent.state.events import event
from graph_agent.state.messages import new_user_messages, open_calls, order_results
from graph_agent.state.schema import PlanState
from graph_agent.tools.commands import parent_command
from graph_agent.types import STATUS_OF, SessionStatus


async def apply_edits(update: PlanUpdate) -> None:
    """Apply the edits of a finished wave that an earlier run planned."""
    ready = update.state.get("ready", [])
    if (
        ready
        and not update.loop.get("awaiting_approval")
        and update.run.planned.issuperset(call["id"] for call in ready)
    ):
        return
    apply_decisions(update)
    await _record_edits(update)
    ordered, warnings = results_in_order(update.history, update.loop["step"])
    update.replace_history(ordered)
    update.events += warnings
    if added := new_user_messages(update.history, update.loop["last_input_id"]):
        update.events += [
            event("steering", update.loop["step"], content=to_json_safe(message.content)) for message in added
        ]
        update.loop["last_input_id"] = added[-1].id or ""
    unanswered = {call["id"] for call in _wave(update).open}
    update.waiting_delegations = [call for call in update.waiting_delegations if call["id"] in unanswered]
    remote = update.state.get("remote")
    if answered := {id_: task for id_, task in remote["open"].items() if id_ not in unanswered} if remote else {}:
        await update.withdraw(answered)
    status = update.state.get("status", SessionStatus.CREATED.value)
    if status != SessionStatus.RUNNING:
        # A person has started an input with their own calls.
        update.run.begin_input()
        update.reset_counters()
        update.events.append(status_event(status, SessionStatus.RUNNING.value, 0))
        update.changes |= {"status": SessionStatus.RUNNING.value, "stop_reason": None, "structured_response": None}
    _queue_open_calls(update)


async def continue_after_edit(update: PlanUpdate) -> bool:
    """Continue the current input after an edit that led directly to `plan`; False for a new input."""
    await _record_edits(update)
    if update.state.get("status") != SessionStatus.RUNNING or update.loop["step"] == 0:
        return False
    if new_user_messages(update.history, update.loop["last_input_id"]):
        return False
    if (remote := update.state.get("remote")) and remote["open"]:
        await update.withdraw(remote["open"])
    await update.prepare()
    await update.settle(continues=True)
    _queue_open_calls(update)
    newest = update.history[-1]
    if isinstance(newest, AIMessage) and not newest.tool_calls:
        if is_blank(newest.text):
            # A person has removed the whole plan. Providers refuse an empty model message, and no answer is empty.
            update.replace_history(update.history[:-1])
        else:
            # A person has replaced the plan by an answer.
            update.conclude({"stop_reason": "completed", "draft": newest})
    return True


async def _record_edits(update: PlanUpdate) -> None:
    """Record calls that a person answered or removed, and convert an edited message to a form that providers accept."""
    wave, wave_finished = _wave(update), bool(update.state.get("wave_finished"))
    answers = [wave.answered[id_] for id_ in wave.order if id_ in wave.answered]
    update.events += [answer_event(*answer, update.loop["step"]) for answer in answers]
    if wave.removed:
        # A call that still precedes a newer model message is settled with all other open calls.
        held = {call["id"] for group in open_calls(update.history) for call in group.calls}
        removed = [call for call in wave.removed if call["id"] not in held]
        update.events += await removed_events(update.task, removed, update.loop, wave_finished=wave_finished)
    if (
        not wave.edited
        or wave.message is None
        or not (wave_finished or update.state.get("ready") or update.loop["waiting"])
    ):
        return
    if (fixed := _canonical(wave.message)) != wave.message:
        update.replace_history([fixed if message is wave.message else message for message in update.history])


def _queue_open_calls(update: PlanUpdate) -> None:
    """Queue the calls for which no task was started; `PlanUpdate.continue_wave` selects from them."""
    wave = _wave(update)
    delegations = {call["id"] for call in update.waiting_delegations}
    update.loop["waiting"] = [call for call in wave.open if call["id"] not in delegations]
    update.loop["outcome"] = None
    update.loop.pop("awaiting_approval", None)


def _canonical(message: AIMessage) -> AIMessage:
    """A model message whose calls all have ids and exist as `tool_calls` only."""
    return without_call_blocks(read_reply(message, [], text=False).message)


def _wave(update: PlanUpdate) -> CurrentWave:
    events = [*since_plan(update.state.get("events", ())), *update.events]
    return current_wave({**update.state, "messages": update.history, "events": events, "loop": update.loop})


_HANDED_OFF = "Not run: another call handed the conversation off to the parent graph."


def apply_extras(update: PlanUpdate) -> None:
    """Add the messages that middleware returned with the reply whose wave has finished."""
    if update.loop["waiting"] or update.loop["outcome"] is not None:
        return
    for message in update.loop.pop("extras", {}).get("messages", []):
        update.add_message(message)
        update.history = [*update.history, message]


def apply_after_wave(update: PlanUpdate) -> None:
    """Add the messages that calls of the finished wave left for the history, and end at their handoffs, if any."""
    remote = update.state.get("remote")
    if not remote or not (after := remote.get("after")):
        return
    change = update.changes.get("remote", {"contexts": {}, "open": {}})
    update.changes["remote"] = {**change, "after": None}
    order = [entry["id"] for entry in answers_of_wave(update.state["events"])]
    effects = [after[id_] for id_ in order if id_ in after]
    for message in [message for each in effects for message in each["messages"]]:
        update.add_message(message)
        update.history = [*update.history, message]
    if handoffs := [each["handoff"] for each in effects if each["handoff"] is not None]:
        update.skip([(call, _HANDED_OFF) for call in update.loop["waiting"]])
        update.loop["waiting"] = []
        update.conclude({"stop_reason": "completed", "handoffs": handoffs})


def handoff_command(state: PlanState) -> Command[Any] | None:
    """Return what `finalize` returns for a handoff; None without one.

    The first command closes the input without an answer and runs `finalize` again; the second leaves for the parent
    graph. LangGraph drops the writes of a task that leaves, so the closing update needs a superstep of its own.

    Args:
        state: The state of `finalize`.
    """
    outcome = state["loop"]["outcome"]
    if outcome is None or not (handoffs := outcome.get("handoffs")):
        return None
    if state["status"] != SessionStatus.RUNNING:
        return parent_command([_with_results(handoff, state["messages"]) for handoff in handoffs])
    status = STATUS_OF["completed"].value
    closed = status_event(state["status"], status, state["loop"]["step"])
    update = {"status": status, "stop_reason": "completed", "events": [closed]}
    return Command(update=update, goto="finalize")


def _with_results(handoff: Handoff, history: Sequence[AnyMessage]) -> Handoff:
    """Return a handoff whose conversation, if it gives one on, has the results of all calls of the wave."""
    update: list[tuple[str, Any]] = []
    for name, value in handoff["update"]:
        if name == "messages" and isinstance(value, list) and any(isinstance(each, AIMessage) for each in value):
            answered = {each.tool_call_id for each in value if isinstance(each, ToolMessage)}
            results = [each for each in history if isinstance(each, ToolMessage) and each.tool_call_id not in answered]
            update.append((name, order_results([*value, *results])))
        else:
            update.append((name, value))
    return {"goto": handoff["goto"], "update": update}
