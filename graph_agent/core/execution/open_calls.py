"""Determines the open calls of the newest plan, and settles those that an earlier run left open.

At a breakpoint a person may edit the planned calls: change one, remove it, add another, or answer it. The messages
determine the calls that run; `needs` and faults from the plan apply only to unchanged calls. New input settles open
calls with their stored result, or with a skipped or unknown one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from graph_agent.base.calls import calls_of
from graph_agent.base.history import call_events
from graph_agent.base.history.events import StoredEvent, event, is_own
from graph_agent.base.types import Call
from graph_agent.base.waves.references import BadReferenceError, referenced_ids, resolve
from graph_agent.base.waves.schema import Selection, select
from graph_agent.core.execution.deps import Task
from graph_agent.core.execution.ledger import (
    Write,
    calls_gone_back_to,
    checkpoint_of,
    finished_writes,
    is_own_field,
    wave_recovery,
)
from graph_agent.core.state.messages import is_settled, open_calls, order_results, with_results
from graph_agent.core.state.own_checkpoint import BY_A_PERSON, edit_ancestors, load, load_running
from graph_agent.core.state.schema import LoopState
from graph_agent.core.state.stored_messages import StoredMessages

FIELDS = ("messages", "events", "ready", "loop")
"""The state fields that `current_wave` reads."""


@dataclass(frozen=True, slots=True)
class CurrentWave:
    """The unfinished calls of the newest plan, taking into account what a person edited in the messages."""

    message: AIMessage | None
    """The model's newest message, which has the calls; None if there is none."""
    order: list[str]
    """The ids of the message's calls, in order, without repeats and empty ids."""
    open: list[Call]
    """The calls without a result. References in their arguments are not replaced by values."""
    ready: dict[str, Call]
    """Id → open call that can run now, with references in the arguments replaced by values."""
    answered: dict[str, tuple[Call, ToolMessage]]
    """Id → (call, result) of the calls whose result a person wrote into the messages, and that have no result event
    yet."""
    removed: list[Call]
    """Planned calls that a person deleted from the message and that have no result event.

    Their `arguments` are empty.
    """
    edited: bool
    """Whether a person has changed, added or removed calls of the message since the plan."""

    def next_calls(self, waiting: Collection[str]) -> list[Call]:
        """Return the calls that need a node's task after an edit, in the order of the message.

        These are the calls that can run, and those that a person answered, whose answer must still be recorded.

        Args:
            waiting: Ids of calls that `plan` holds back until others finish or a person decides. They are left out,
                unless a person has answered them.
        """
        found = {id_: call for id_, (call, _) in self.answered.items()}
        found |= {id_: call for id_, call in self.ready.items() if id_ not in waiting}
        return [found[id_] for id_ in self.order if id_ in found]


def current_wave(state: Mapping[str, Any]) -> CurrentWave:
    """Compute the unfinished calls of the newest plan, by comparing the plan with the messages.

    - Older history is not read. A call of the newest model message without a result is open.
    - A call that a person changed or added loses what the plan recorded of it. In a structured plan, it waits for the
      calls that its references name, and for planned ones that still exist.
    - Without a structured plan, every open call can run.
    - A call without an id, or with that of an earlier call of the message, is ignored, and counts as an edit.

    Args:
        state: A mapping with the fields of `FIELDS`; each may be missing.
    """
    message, results = newest_calls(state.get("messages", ()))
    events = call_events.since_plan(state.get("events", ()))
    ready: list[Call] = state.get("ready") or []
    waiting: list[Call] = state["loop"]["waiting"] if "loop" in state else []
    planned = {call["id"]: call for call in [*ready, *waiting]}
    ready_ids = {call["id"] for call in ready} - {call["id"] for call in waiting}
    recorded = call_events.recorded_ids(events)
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
    structured = call_events.is_structured(events)
    # Elsewhere nothing refers to a call.
    names = call_events.plan_ids(events) if structured else {}
    values = call_events.results_of_wave(events) | {
        names.get(id_, id_): call_events.result_value(result.content)
        for id_, (_, result) in answered.items()
        if result.status == "success"
    }
    failed = call_events.failed_ids(events) | {
        names.get(id_, id_) for id_, (_, result) in answered.items() if result.status == "error"
    }
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
            changed = Call({**call, "plan_id": names[id_]}) if id_ in names else call
            needs = _needs(call, known, {names.get(each, each) for each in calls}) if structured else []
            open_calls.append({**changed, "needs": needs} if needs else changed)
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
    """Return the model's newest message, and the tool messages after it by call id; of several with one id, the first.

    Without a message of the model, None and all tool messages.
    """
    results: dict[str, ToolMessage] = {}
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message, results
        if isinstance(message, ToolMessage):
            results[message.tool_call_id] = message
    return None, results


def _is_unchanged(call: Call, known: Call, values: Mapping[str, Any] | None) -> bool:
    """Whether a call of the message equals the planned one, possibly after references in it are replaced by results.

    False for another name, arguments with a `fault`, and a reference that cannot be resolved.

    Args:
        call: The call as the message has it.
        known: The planned call.
        values: Results by plan id, with which references are replaced; None if calls cannot refer to each other.
    """
    if call["name"] != known["name"] or "fault" in call:
        return False
    if call["arguments"] == known["arguments"]:
        return True
    try:
        return values is not None and resolve(call["arguments"], values) == known["arguments"]
    except BadReferenceError:
        return False


def _needs(call: Call, known: Call | None, calls: Collection[str]) -> list[str]:
    """Return the plan ids that an edited call waits for: planned needs that still exist, then those in its references.

    Args:
        call: The edited call. If a reference in it is malformed, only the planned needs remain.
        known: The call as planned; None for a call that a person added.
        calls: Plan ids of the calls that exist.
    """
    kept = [need for need in known.get("needs", ()) if need in calls] if known is not None else []
    try:
        return list(dict.fromkeys([*kept, *referenced_ids(call["arguments"])]))
    except BadReferenceError:
        return kept  # the same error becomes its result


REMOVED = "Not run: a person took this call out of the plan."
"""Result of a removed call that had not started, for the model."""
REMOVED_LATE = "A person took this call out of the plan. It is not known whether it had run or taken effect by then."
"""Result of a removed call that may have started, for the model."""


async def settle(
    task: Task, messages: list[AnyMessage], loop: LoopState, *, runs_again: Callable[[str], bool] | None = None
) -> tuple[list[AnyMessage], list[StoredEvent], list[Write]]:
    """Add a result for each open call (a call without a result), and place every result right after its call.

    A result in another place is moved; one without a call is dropped, with a `warning` event. The added result is the
    first of these that applies:
    - for a call of the newest message that had finished when the run stopped, the stored one, from that checkpoint's
      pending writes
    - `unknown` for a call of an older message, or of a wave that a person went back to in time, because the branch that
      was left may have run it
    - `skipped` for a call that waits for a person's decision or for others, or that certainly never started
    - `unknown` for any other call, as it may have run

    Decisions of a person that no plan has processed add their events.

    Args:
        task: The task of the node `plan`.
        messages: The conversation; not changed in place.
        loop: The loop state as of the stopped run.
        runs_again: Whether a call may run twice, by its name. Given if an input continues after an edit: calls of the
            newest message then stay open if they never started or may run twice. None for new input, which settles
            every call.

    Returns:
        The conversation with the results in place; the events of the added results; and the writes to fields of the
        agent's `state_schema` by calls that had finished. If there is nothing to settle, the given list and two empty
        lists.
    """
    lent = task.run.stored
    if is_settled(messages) if lent is None else _are_settled(messages, lent):
        return messages, [], []
    step, writes = loop["step"], task.deps.toolbox.writes
    messages, events = results_in_order(messages, step)
    found = open_calls(messages)
    if not found:
        return messages, events, []
    stopped, before = await _stopped_at(task)
    stored = [*reversed(before), stopped] if stopped else []
    ended = finished_writes([write for at in stored for write in at.pending_writes or []])
    finished, recorded = _finished(ended)
    waited, asked = {call["id"] for call in loop["waiting"]}, {call["id"] for call in loop.get("awaiting_approval", ())}
    if asked and stopped is not None:
        events.extend(_stored_decisions(stopped))
    recovery = wave_recovery(stopped, before)
    # New input does not repeat a wave that a person went back to.
    gone_back_to = calls_gone_back_to(stopped, before) if runs_again is None else frozenset[str]()
    results: dict[tuple[int, str], ToolMessage] = {}
    own_writes: list[Write] = []
    last = max(at for at, message in enumerate(messages) if isinstance(message, AIMessage))
    for group in found:
        # Ids may repeat in a session; only the newest calls can have been running.
        newest = group is found[-1]
        for call in group.calls:
            id_ = call["id"] or ""
            if newest and id_ in finished:
                results[group.at, id_] = finished[id_]
                events.extend(recorded.get(id_, []))
                own_writes += [write for write in ended[id_] if is_own_field(write[0])]
                continue
            # The ledger has no notes of calls that read.
            ledger = writes(call["name"]) and loop.get("ledger", False)
            not_run = None
            if not newest or id_ in gone_back_to:
                pass
            elif id_ in recovery.undecided or id_ in waited & asked:
                not_run = call_events.UNDECIDED
            elif id_ in waited:
                not_run = call_events.NEVER_STARTED
            elif recovery.is_certainly_unstarted(id_, ledger=ledger):
                not_run = call_events.NOT_STARTED
            if runs_again is not None and group.at == last and (not_run or runs_again(call["name"])):
                continue
            reason = not_run or (call_events.UNKNOWN_OUTCOME if writes(call["name"]) else call_events.READING)
            results[group.at, id_], result = result_without_output(
                id_, call["name"], "skipped" if not_run else "unknown", reason, step
            )
            events.append(result)
    return with_results(messages, results), events, own_writes


def _are_settled(messages: list[AnyMessage], stored: StoredMessages) -> bool:
    """Whether the conversation is settled (see `is_settled`).

    Stored messages that were settled at an earlier run of the session are not examined again; if the other stored ones
    are settled, too, this is recorded for the next run.
    """
    count, _ = stored.find("settled", messages)
    if is_settled(messages[count : stored.count]):
        count = stored.count
        stored.facts["settled"] = messages[:count], None
    return is_settled(messages[count:])


def results_in_order(messages: list[AnyMessage], step: int) -> tuple[list[AnyMessage], list[StoredEvent]]:
    """Place each result in the history directly after its call; results without a call, and second ones, are dropped.

    `step` is the number of the plan for the event.

    Returns:
        The conversation, and one `warning` event with the number of dropped results; no event if none was dropped.
    """
    ordered = order_results(messages)
    dropped = len(messages) - len(ordered)
    if not dropped:
        return ordered, []
    left_out = f"Results that answer no call, or one that has its result, were left out: {dropped}."
    return ordered, [event("warning", step, message=left_out)]


def result_without_output(id_: str, name: str, status: str, text: str, step: int) -> tuple[ToolMessage, StoredEvent]:
    """Return the message and the event of a call that has no output of its own, such as a skipped one.

    Args:
        id_: Id of the call.
        name: Name of the call.
        status: A `ResultStatus` for the event; the message's own status is always `error`.
        text: Why there is no output, for the model.
        step: Number of the plan.
    """
    message = ToolMessage(text, tool_call_id=id_, name=name, status="error")
    return message, call_events.result_event(id_, name, status, text, step)


def _finished(finished: Mapping[str, Sequence[Write]]) -> tuple[dict[str, ToolMessage], dict[str, list[StoredEvent]]]:
    """Split the writes of finished calls: call id → result message, and call id → events (absent if it wrote none).

    Args:
        finished: Call id → the stored writes of its task.
    """
    messages: dict[str, ToolMessage] = {}
    events: dict[str, list[StoredEvent]] = {}
    for id_, writes in finished.items():
        for channel, value in writes:
            if channel == "messages":
                messages[id_] = next(item for item in value if item.tool_call_id == id_)
            elif channel == "events":
                events[id_] = value
    return messages, events


def _stored_decisions(stopped: CheckpointTuple) -> list[StoredEvent]:
    """Return the `approval_decision` events among the pending writes of a stopped checkpoint.

    These decisions reached the checkpoint, but no plan has processed them. Decisions on calls of delegates are left
    out.
    """
    writes = [value for _, channel, value in stopped.pending_writes or [] if channel == "events"]
    return [entry for value in writes for entry in value if is_own(entry, "approval_decision")]


async def removed_events(
    task: Task, calls: Sequence[Call], loop: LoopState, *, wave_finished: bool
) -> list[StoredEvent]:
    """Return the events of planned calls that a person has deleted from the messages.

    A call that had finished gets its stored events. Any other gets a result event: `skipped` if it waited for others or
    certainly never started, else `unknown`.

    Args:
        task: The task of the node `plan`.
        calls: The removed calls; an empty sequence gives no events.
        loop: The loop state as of the stopped run.
        wave_finished: Whether this run has already run the other calls of the wave, so that the stop lies one superstep
            further back.
    """
    if not calls:
        return []
    writes = task.deps.toolbox.writes
    recovery = wave_recovery(*await _stopped_at(task, wave_finished=wave_finished))
    _, recorded = _finished(recovery.finished)
    waited = {call["id"] for call in loop["waiting"]}
    events: list[StoredEvent] = []
    for call in calls:
        ledger = writes(call["name"]) and loop.get("ledger", False)
        certain = call["id"] in waited or recovery.is_certainly_unstarted(call["id"], ledger=ledger)
        reason, status = (REMOVED, "skipped") if certain else (REMOVED_LATE, "unknown")
        own = call_events.result_event(call["id"], call["name"], status, reason, loop["step"])
        events += recorded.get(call["id"], [own])
    return events


async def _stopped_at(
    task: Task, *, wave_finished: bool = False
) -> tuple[CheckpointTuple | None, list[CheckpointTuple]]:
    """Return the checkpoint at which the newest wave stopped (None if unknown), and those it was edited from, newest
    first.

    Args:
        task: The task of the node `plan`.
        wave_finished: Whether this run has already run the wave; False if an earlier run stopped before or in it.
    """
    saver, _ = checkpoint_of(task)
    stopped = await _before_input(task, wave_finished=wave_finished)
    return stopped, await edit_ancestors(saver, stopped) if saver is not None else []


async def _before_input(task: Task, *, wave_finished: bool) -> CheckpointTuple | None:
    """Return the checkpoint at which the session stopped before this input; None without one, or without a
    checkpointer.

    - If nothing of this run is stored (`durability="exit"`): the newest checkpoint.
    - With `wave_finished`: the parent of the running checkpoint, which is that of the wave.
    - If a person's edit left no call to run: the edit.
    - Otherwise the search goes back over the checkpoints of inputs that were stored without running.

    Args:
        task: The task of the node `plan`.
        wave_finished: Whether this run has already run the wave.
    """
    saver, running = checkpoint_of(task)
    if saver is None or running is None:
        return None
    at = await load_running(saver, running)
    if at is None:
        # Under durability="exit" nothing of this run is stored yet; the newest checkpoint is the end of the last run.
        newest = {key: value for key, value in running["configurable"].items() if key != "checkpoint_id"}
        return await load(saver, {"configurable": newest})
    if wave_finished:
        return await _parent(saver, at)
    if at.metadata.get("source") == "loop":
        edited = await _parent(saver, at)
        if edited is not None and edited.metadata.get("source") in BY_A_PERSON:
            return edited  # the edit left no call to run, so this run started at `plan`
    # Each input creates a checkpoint, and another one follows before `plan` runs. An input whose plan never finished
    # has no further checkpoint, so the search continues before it.
    while at is not None:
        given = at if at.metadata.get("source") == "input" else await _parent(saver, at)
        if given is None or given.metadata.get("source") != "input":
            return at
        at = await _parent(saver, given)
    return None


async def _parent(saver: BaseCheckpointSaver[Any], at: CheckpointTuple) -> CheckpointTuple | None:
    """Return the checkpoint at which the superstep before this one began; None if it is not stored.

    It is not if supersteps were not stored (`durability="exit"`) or were pruned, so that the recorded parent is an
    earlier one. For a copy (`update_state` as `__copy__`), the recorded parent is returned in any case.
    """
    parent = await load(saver, at.parent_config) if at.parent_config is not None else None
    # A copy (`update_state` as `__copy__`) has the parent of its original, but the superstep after it.
    if parent is None or at.metadata.get("source") == "fork":
        return parent
    # Where supersteps were not stored (durability="exit") or were pruned, the parent is an earlier checkpoint.
    return parent if parent.metadata.get("step", 0) == at.metadata.get("step", 0) - 1 else None
