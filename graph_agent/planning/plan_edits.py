"""Edits of the newest plan by a person while the graph was interrupted, applied by `plan`.

The tasks of a resumed wave run their calls as stored in the messages. This module handles the rest: calls without a
task, results without an event, and a message that providers would refuse.
"""

from __future__ import annotations

from langchain_core.messages import AIMessage

from graph_agent._internal.text import plain
from graph_agent.events.calls import answer_event, since_plan
from graph_agent.events.types import event
from graph_agent.execution.current_wave import CurrentWave, current_wave
from graph_agent.execution.settlement import removed_events, results_in_order
from graph_agent.models.cleaning import without_call_blocks
from graph_agent.models.visibility import is_blank
from graph_agent.planning.approvals import apply_decisions
from graph_agent.planning.reply import read_reply
from graph_agent.planning.update import PlanUpdate
from graph_agent.state.channels import status_event
from graph_agent.state.messages import new_user_messages, open_calls
from graph_agent.types import SessionStatus


async def apply_edits(update: PlanUpdate) -> None:
    """Apply the edits of a finished wave that an earlier run planned."""
    ready = update.state.get("ready", [])
    if ready and update.run.planned.issuperset(call["id"] for call in ready):
        return
    apply_decisions(update)
    await _record_edits(update)
    ordered, warnings = results_in_order(update.history, update.loop["step"])
    update.replace_history(ordered)
    update.events += warnings
    if added := new_user_messages(update.history, update.loop["last_input_id"]):
        update.events += [event("steering", update.loop["step"], content=plain(message.content)) for message in added]
        update.loop["last_input_id"] = added[-1].id or ""
    unanswered = {call["id"] for call in _wave(update).open}
    update.waiting_delegations = [call for call in update.waiting_delegations if call["id"] in unanswered]
    remote = update.state.get("remote")
    if answered := {id_: task for id_, task in remote["open"].items() if id_ not in unanswered} if remote else {}:
        await update.withdraw(answered)
    status = update.state.get("status", SessionStatus.CREATED.value)
    if status != SessionStatus.RUNNING:
        # A person has started an input with their own calls.
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
    await update.deps.prepare()
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
    wave, arrived = _wave(update), bool(update.state.get("arrived"))
    answers = [wave.answered[id_] for id_ in wave.order if id_ in wave.answered]
    update.events += [answer_event(*answer, update.loop["step"]) for answer in answers]
    if wave.removed:
        # A call that still precedes a newer model message is settled with all other open calls.
        held = {call["id"] for group in open_calls(update.history) for call in group.calls}
        removed = [call for call in wave.removed if call["id"] not in held]
        writes = update.deps.toolbox.writes
        update.events += await removed_events(
            removed, update.config, update.runtime, update.loop, writes, arrived=arrived
        )
    if not wave.edited or wave.message is None or not (arrived or update.state.get("ready") or update.loop["waiting"]):
        return
    if (fixed := _canonical(wave.message)) != wave.message:
        update.replace_history([fixed if message is wave.message else message for message in update.history])


def _queue_open_calls(update: PlanUpdate) -> None:
    """Queue the calls for which no task was started; `PlanUpdate.continue_wave` selects from them."""
    wave = _wave(update)
    delegations = {call["id"] for call in update.waiting_delegations}
    update.loop["waiting"] = [call for call in wave.open if call["id"] not in delegations]
    update.loop["outcome"] = None
    update.loop.pop("asked", None)


def _canonical(message: AIMessage) -> AIMessage:
    """A model message whose calls all have ids and exist as `tool_calls` only."""
    return without_call_blocks(read_reply(message, [], text=False).message)


def _wave(update: PlanUpdate) -> CurrentWave:
    events = [*since_plan(update.state.get("events", ())), *update.events]
    return current_wave({**update.state, "messages": update.history, "events": events, "loop": update.loop})
