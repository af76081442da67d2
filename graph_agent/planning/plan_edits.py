"""What a person has changed of the newest plan while the graph stood still, taken in by `plan`.

The tasks of a resumed wave run their calls as the messages have them. Here follows the rest: calls that no task was
started for, results that no event tells of, and a message that providers would refuse.
"""

from __future__ import annotations

from langchain_core.messages import AIMessage

from graph_agent._internal.text import plain
from graph_agent.events.calls import answer_event
from graph_agent.events.queries import since_plan
from graph_agent.events.types import event
from graph_agent.execution.current_wave import CurrentWave, current_wave
from graph_agent.execution.settlement import removed_events, results_in_order
from graph_agent.models.cleaning import without_call_blocks
from graph_agent.planning.reply import read_reply
from graph_agent.planning.update import Step
from graph_agent.state.channels import status_event
from graph_agent.state.messages import new_user_messages, open_calls
from graph_agent.types import SessionStatus


async def take_edits(step: Step) -> None:
    """Take in the edits of a wave that has come back, where a run before this one planned it."""
    ready = step.state.get("ready", [])
    if ready and step.run.planned.issuperset(call["id"] for call in ready):
        return
    await _record_edits(step)
    ordered, warnings = results_in_order(step.history, step.loop["step"])
    step.replace_history(ordered)
    step.events += warnings
    if words := new_user_messages(step.history, step.loop["last_input_id"]):
        step.events += [event("steering", step.loop["step"], content=plain(said.content)) for said in words]
        step.loop["last_input_id"] = words[-1].id or ""
    unanswered = {call["id"] for call in _wave(step).open}
    step.asking = [call for call in step.asking if call["id"] in unanswered]
    remote = step.state.get("remote")
    if gone := {id_: task for id_, task in remote["open"].items() if id_ not in unanswered} if remote else {}:
        await step.withdraw(gone)
    status = step.state.get("status", SessionStatus.CREATED.value)
    if status != SessionStatus.RUNNING:
        # A person has begun an input with calls of their own.
        step.begin_counting()
        step.events.append(status_event(status, SessionStatus.RUNNING.value, 0))
        step.changes |= {"status": SessionStatus.RUNNING.value, "stop_reason": None, "structured_response": None}
    _take_up_calls(step)


async def go_on_after_edit(step: Step) -> bool:
    """Go on with the input under way where an edit has led straight to `plan`; False for a new input."""
    await _record_edits(step)
    if step.state.get("status") != SessionStatus.RUNNING or step.loop["step"] == 0:
        return False
    if new_user_messages(step.history, step.loop["last_input_id"]):
        return False
    if (remote := step.state.get("remote")) and remote["open"]:
        await step.withdraw(remote["open"])
    await step.parts.prepare()
    await step.settle(goes_on=True)
    _take_up_calls(step)
    newest = step.history[-1]
    if isinstance(newest, AIMessage) and not newest.tool_calls:
        # A person has put an answer in the plan's place.
        step.conclude({"stop_reason": "completed", "draft": newest})
    return True


async def _record_edits(step: Step) -> None:
    """Record what a person has answered or removed, and make an edited message one that providers take."""
    wave, arrived = _wave(step), bool(step.state.get("arrived"))
    answers = [wave.answered[id_] for id_ in wave.order if id_ in wave.answered]
    step.events += [answer_event(*answer, step.loop["step"]) for answer in answers]
    if wave.removed:
        # Behind a newer message of the model's, a call that is there still is settled with all others.
        held = {call["id"] for group in open_calls(step.history) for call in group.calls}
        removed = [call for call in wave.removed if call["id"] not in held]
        step.events += await removed_events(removed, step.config, step.runtime, step.loop, arrived=arrived)
    if not wave.edited or wave.message is None or not (arrived or step.state.get("ready") or step.loop["waiting"]):
        return
    if (fixed := _canonical(wave.message)) != wave.message:
        step.replace_history([fixed if message is wave.message else message for message in step.history])


def _take_up_calls(step: Step) -> None:
    """Have the calls wait for their turn that no task was started for; `Step.go_on_with_the_wave` selects them."""
    wave = _wave(step)
    asking = {call["id"] for call in step.asking}
    step.loop["waiting"] = [call for call in wave.open if call["id"] not in asking]
    step.loop["outcome"] = None


def _canonical(message: AIMessage) -> AIMessage:
    """A message of the model's with an id for each call, and its calls in no other form than `tool_calls`."""
    return without_call_blocks(read_reply(message, [], text=False).message)


def _wave(step: Step) -> CurrentWave:
    events = [*since_plan(step.state.get("events", ())), *step.events]
    return current_wave({**step.state, "messages": step.history, "events": events, "loop": step.loop})
