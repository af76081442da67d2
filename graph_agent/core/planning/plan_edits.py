"""Starts the calls of a plan, asks for decisions on them, and applies edits of the plan and the effects after a wave.

The tasks of a resumed wave run their calls as stored in the messages. This module handles the rest: calls without a
task, results without an event, and a message that providers would refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from langchain_core.messages import AIMessage

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.approvals.requests import HeldCall
from graph_agent.base.history.approval_events import request_event
from graph_agent.base.history.call_events import answer_event, answers_of_wave, approval_progress
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.input_messages import new_user_messages
from graph_agent.base.types import Call, SessionStatus
from graph_agent.base.waves.schema import Selection
from graph_agent.core.execution.approvals import held_calls
from graph_agent.core.execution.open_calls import CurrentWave, current_wave, removed_events, results_in_order
from graph_agent.core.execution.uncertain_calls import mark_uncertain_calls
from graph_agent.core.extensions.toolbox import Toolbox, planned_fault
from graph_agent.core.planning.approval_decisions import apply_decisions
from graph_agent.core.planning.reply import read_reply
from graph_agent.core.planning.update import AT_LIMIT, PlanUpdate
from graph_agent.core.state.channels import status_event
from graph_agent.core.state.messages import open_calls
from graph_agent.core.state.run import WorkStoppedError
from graph_agent.models.sanitize import without_call_blocks
from graph_agent.models.stream_filters import is_blank

_CYCLE = "Not run: it needs calls that need it."
_STOPPED = "Not run: the run was stopped before the approval policy had decided."


async def start_calls(
    update: PlanUpdate, calls: Sequence[Call], chosen: Selection, wave: Sequence[StoredEvent] | None = None
) -> None:
    """Make the calls of a wave run next, except for those that a person must approve first.

    Held calls wait. The approval request is sent only when no other call of the wave can run, so that a resume repeats
    no call; delegations that wait for a person ask at the same time. A call that must be approved, but whose arguments
    do not fit its tool, gets the error as its result instead. If the run is stopped while the policy decides, no call
    runs, each gets a `skipped` result, and planning ends.

    Args:
        update: The pass through `plan`, which is changed.
        calls: The calls that `chosen` was selected from, with references not replaced.
        chosen: The calls that can run, and those that wait for others.
        wave: Events of the wave so far; None for a new wave.

    Raises:
        CancelledError: The pass was cancelled while the policy decided; each call has a result by then.
    """
    if update.deps.wrap_tool_call is None:
        # Middleware may change a call, or run one of an unknown name.
        checked = [await _checked(update.deps.toolbox, call) for call in chosen.ready]
        chosen = Selection(checked, chosen.skipped, chosen.waiting)
    held: list[HeldCall] = []
    if update.settings.approve is not None:
        if update.settings.origins:
            # Imported here: most agents trace no origins.
            from graph_agent.core.planning.traced_calls import trace_calls

            chosen = Selection(await trace_calls(update, calls, chosen.ready), chosen.skipped, chosen.waiting)
        policy = held_calls(chosen.ready, wave or (), update.deps, update.settings)
        try:
            held = await update.run.stop.stoppable(policy, "An approval policy")
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
    # In a thread, because a schema of others may take long to check.
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


async def start_waiting_calls(update: PlanUpdate) -> bool:
    """Make the waiting calls run that are ready now, and ask a person what the wave's delegations ask.

    Calls that can never run get a `skipped` result with the reason, including calls that an edit has made wait for each
    other. At the recursion limit, all waiting calls get one, delegations that ask a person an `error` result, and
    planning ends.

    Returns:
        False if no call is ready and no delegation asks, so that `plan` continues; otherwise True, also at the
            recursion limit.
    """
    wave = update.wave_events
    calls, chosen = update.loop["waiting"], update.select_waiting(wave)
    update.skip(chosen.skipped)
    update.loop["waiting"] = chosen.waiting
    if not chosen.ready and not update.waiting_delegations:
        # No call is running, so a person's edit has made the waiting calls need each other.
        update.skip([(call, _CYCLE) for call in chosen.waiting])
        update.loop["waiting"] = []
        return False
    if update.state["remaining_steps"] < update.deps.steps_for_a_wave:
        update.answer_waiting_delegations()
        update.skip([(call, AT_LIMIT) for call in [*chosen.ready, *chosen.waiting]])
        update.loop["waiting"] = []
        update.stop_at_recursion_limit()
    else:
        await start_calls(update, calls, chosen, wave)
    return True


async def _checked(toolbox: Toolbox, call: Call) -> Call:
    """Return the call, with a `fault` if it cannot run. A check against an external JSON schema runs in a thread."""
    if call["name"] not in toolbox.schema_checks:
        return toolbox.checked(call)
    return await asyncio.to_thread(toolbox.checked, call)  # in a thread, as above


def _ask(update: PlanUpdate, held: list[HeldCall], wave: Sequence[StoredEvent]) -> None:
    """Ask a person for decisions: store the held calls in `awaiting_approval`, add the `approval_request` event, and
    emit progress for each.

    Calls that may repeat the effect of an earlier call are marked as uncertain. The node `approve`, which runs next,
    interrupts the graph with the request. Delegations that wait for a person become ready, and ask at the same time.

    Args:
        update: The pass through `plan`, which is changed.
        held: The calls to decide on.
        wave: Events of the wave so far; empty for a new wave.
    """
    step = update.loop["step"]
    stored = update.state.get("events", ())
    held = mark_uncertain_calls(held, update.loop, stored, update.events, update.deps.toolbox)
    update.make_ready(update.waiting_delegations, wave)
    update.loop["awaiting_approval"] = held
    update.events.append(request_event(held, step))
    for call in held:
        update.task.runtime.stream_writer(approval_progress(call["name"], step))


async def apply_edits(update: PlanUpdate) -> None:
    """Apply what a person did to a wave that an earlier run planned, and queue the calls that are still open.

    - Decisions on approvals are applied.
    - Calls that the person answered or removed get events; calls that were edited or added are queued.
    - Results are put after their calls, and dropped with a `warning` event if they have none; added user messages count
      as steering.
    - Delegates whose call got a result otherwise are withdrawn.
    - If the session is not running, the person has begun an input: counters are reset, and the status becomes
      `running`.

    Does nothing if this run has planned all calls of the wave itself, and none of them waited for a decision.
    """
    ready = update.state.get("ready", [])
    if (
        ready
        and not update.loop.get("awaiting_approval")
        and update.run.calls.planned.issuperset(call["id"] for call in ready)
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
        update.run.stop.begin_input()
        update.reset_counters()
        update.events.append(status_event(status, SessionStatus.RUNNING.value, 0))
        update.changes |= {"status": SessionStatus.RUNNING.value, "stop_reason": None, "structured_response": None}
    _queue_open_calls(update)


async def continue_after_edit(update: PlanUpdate) -> bool:
    """Continue the present input after a person's edit (`update_state`) that led directly to `plan`. Returns whether
    there is such an input.

    Open calls are queued, tasks of delegates that wait for a person are cancelled, and calls that may have run and must
    not run again get results. An answer that replaced the plan ends planning; an emptied plan is removed from the
    history, so that the model is asked again.

    There is none if the input has ended, has no plan yet, or if a new user message begins another. The events of edits
    are added in any case.
    """
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
    """Add events for calls that a person answered or removed, and rewrite an edited model message so that providers
    accept it.

    Does nothing if no planned call is left that an edit could have changed. A removed call that an older message still
    has is left to `settle`.
    """
    wave_finished = bool(update.state.get("wave_finished"))
    if not (wave_finished or update.state.get("ready") or update.loop["waiting"]):
        return  # no planned call is left that an edit could have changed, as at the begin of most inputs
    wave = _wave(update)
    answers = [wave.answered[id_] for id_ in wave.order if id_ in wave.answered]
    update.events += [answer_event(*answer, update.loop["step"]) for answer in answers]
    if wave.removed:
        # A call that still precedes a newer model message is settled with all other open calls.
        held = {call["id"] for group in open_calls(update.history) for call in group.calls}
        removed = [call for call in wave.removed if call["id"] not in held]
        update.events += await removed_events(update.task, removed, update.loop, wave_finished=wave_finished)
    if not wave.edited or wave.message is None:
        return
    # All calls have ids, and exist as `tool_calls` only.
    if (fixed := without_call_blocks(read_reply(wave.message, [], text=False).message)) != wave.message:
        update.replace_history([fixed if message is wave.message else message for message in update.history])


def _queue_open_calls(update: PlanUpdate) -> None:
    """Make the open calls of the newest plan the waiting calls, from which `start_waiting_calls` selects.

    Delegations that wait for a person are left out. The outcome and the calls that await approval are reset.
    """
    wave = _wave(update)
    delegations = {call["id"] for call in update.waiting_delegations}
    update.loop["waiting"] = [call for call in wave.open if call["id"] not in delegations]
    update.loop["outcome"] = None
    update.loop.pop("awaiting_approval", None)


def _wave(update: PlanUpdate) -> CurrentWave:
    """Return the unfinished calls of the newest plan as of this pass."""
    now = {"messages": update.history, "events": update.wave_events, "loop": update.loop}
    return current_wave({**update.state, **now})


_HANDED_OFF = "Not run: another call handed the conversation off to the parent graph."


def apply_after_wave(update: PlanUpdate) -> None:
    """Add the messages that middleware and calls of the finished wave left for the history, and perform a handoff.

    Messages of middleware stay back while calls of the wave wait, or if planning has ended. Effects of calls are
    applied in the order of their results. A handoff (a call's command to the parent graph) skips the waiting calls and
    ends planning.
    """
    if not update.loop["waiting"] and update.loop["outcome"] is None:
        for message in update.loop.pop("extras", {}).get("messages", []):
            update.add_message(message)
    remote = update.state.get("remote")
    if not remote or not (after := remote.get("after")):
        return
    update.change_remote(after=None)
    order = [entry["id"] for entry in answers_of_wave(update.state["events"])]
    effects = [after[id_] for id_ in order if id_ in after]
    for message in [message for each in effects for message in each["messages"]]:
        update.add_message(message)
    if handoffs := [each["handoff"] for each in effects if each["handoff"] is not None]:
        update.skip([(call, _HANDED_OFF) for call in update.loop["waiting"]])
        update.loop["waiting"] = []
        update.conclude({"stop_reason": "completed", "handoffs": handoffs})
