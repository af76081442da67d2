"""Settling calls that an earlier run left open: with their real result, or with the truth that none is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of
from graph_agent.events.calls import result_event
from graph_agent.events.types import StoredEvent, event
from graph_agent.execution.checkpoints import edited_from, load, running_checkpoint
from graph_agent.execution.ledger import Write, begun_in, finished_writes
from graph_agent.state.messages import in_order, open_calls, with_results
from graph_agent.state.schema import Bookkeeping
from graph_agent.types import Call

_TRIES, _PAUSE_S = 200, 0.005
_BY_A_PERSON = ("update", "fork")
"""Sources of the checkpoints that `update_state` and going back in time make."""

NEVER_STARTED = "Not run: the run was interrupted while this call waited for others."
READING = "The run was interrupted before this call had finished. It only reads, so nothing was changed."
NEVER_BEGUN = "Not run: the run was interrupted before this call was begun."
REMOVED = "Not run: a person took this call out of the plan."
REMOVED_LATE = "A person took this call out of the plan. It is not known whether it had run or taken effect by then."
UNKNOWN = (
    "The run was interrupted before this call's result was recorded. It is not known whether the call ran or took "
    "effect; check before repeating it."
)


async def settle(
    messages: list[AnyMessage],
    config: RunnableConfig,
    runtime: Runtime[Any],
    loop: Bookkeeping,
    writes: Callable[[str], bool],
    *,
    runs_again: Callable[[str], bool] | None = None,
) -> tuple[list[AnyMessage], list[StoredEvent]]:
    """Give every call one result, right behind it.

    Results that stand away from their call are moved there; those without any call are taken out, with a warning.
    A call that had finished when the run stopped keeps its result: the checkpoint of that moment still holds it,
    though new input made the graph forget it. One that never started says so. Any other may have run, and its result
    says that this is not known.

    Args:
        messages: The conversation.
        config: The node's config.
        runtime: The node's runtime.
        loop: The state's bookkeeping, as the run that stopped left it.
        writes: Tells of a call's name whether it may have changed something.
        runs_again: Tells of a call's name whether it may be run twice. The newest message's calls then stay open where
            running them takes effect once: their input goes on after an edit. None for a new input.

    Returns:
        The conversation with the results in place, and their events; the very same one when there is nothing to settle.
    """
    step = loop["step"]
    messages, events = results_in_order(messages, step)
    found = open_calls(messages)
    if not found:
        return messages, events
    stopped, before = await _stopped_at(config, runtime)
    stored = [*reversed(before), stopped] if stopped else []
    finished, recorded = _finished(finished_writes([write for at in stored for write in at.pending_writes or []]))
    waited = {call["id"] for call in loop["waiting"]}
    begun = begun_in(stopped, before)
    results: dict[tuple[int, str], ToolMessage] = {}
    last = max(at for at, message in enumerate(messages) if isinstance(message, AIMessage))
    for group in found:
        for call in group.calls:
            id_ = call["id"] or ""
            # Ids may repeat in a session: only the newest calls can have been under way.
            newest = group is found[-1]
            if newest and id_ in finished:
                results[group.at, id_] = finished[id_]
                events.extend(recorded.get(id_, []))
                continue
            unbegun = newest and (id_ in waited or begun.is_certain(id_, ledger=loop.get("ledger", False)))
            if runs_again is not None and group.at == last and (unbegun or runs_again(call["name"])):
                continue
            reason, status = UNKNOWN, "unknown"
            if newest and id_ in waited:
                reason, status = NEVER_STARTED, "skipped"
            elif not writes(call["name"]):
                reason = READING
            elif unbegun:
                reason, status = NEVER_BEGUN, "skipped"
            results[group.at, id_] = ToolMessage(reason, tool_call_id=id_, name=call["name"], status="error")
            events.append(result_event(id_, call["name"], status, reason, step))
    return with_results(messages, results), events


def results_in_order(messages: list[AnyMessage], step: int) -> tuple[list[AnyMessage], list[StoredEvent]]:
    """The conversation as `in_order` gives it, and a warning where results were left out.

    Args:
        messages: The conversation.
        step: The step it happens in.
    """
    ordered = in_order(messages)
    dropped = len(messages) - len(ordered)
    if not dropped:
        return ordered, []
    left_out = f"Results that answer no call, or one that has its result, were left out: {dropped}."
    return ordered, [event("warning", step, message=left_out)]


def never_run(id_: str, name: str, reason: str, step: int) -> tuple[ToolMessage, StoredEvent]:
    """The answer to a call that was never run, and its event.

    Args:
        id_: The call's id.
        name: The call's name.
        reason: Why, for the model.
        step: The step the call belongs to.
    """
    message = ToolMessage(reason, tool_call_id=id_, name=name, status="error")
    return message, result_event(id_, name, "skipped", reason, step)


def _finished(
    finished: Mapping[str, Sequence[Write]],
) -> tuple[dict[str, ToolMessage], dict[str, list[StoredEvent]]]:
    """Results and events of the calls that had finished when a run stopped, by call id."""
    messages: dict[str, ToolMessage] = {}
    events: dict[str, list[StoredEvent]] = {}
    for id_, writes in finished.items():
        for channel, value in writes:
            if channel == "messages":
                messages[id_] = next(item for item in value if item.tool_call_id == id_)
            elif channel == "events":
                events[id_] = value
    return messages, events


async def removed_events(
    calls: Sequence[Call], config: RunnableConfig, runtime: Runtime[Any], loop: Bookkeeping, *, arrived: bool
) -> list[StoredEvent]:
    """The events of planned calls that a person has removed, which leave no result in the conversation.

    Args:
        calls: The calls.
        config: The node's config.
        runtime: The node's runtime.
        loop: The state's bookkeeping, as the run that stopped left it.
        arrived: Whether the rest of their wave has run since.
    """
    if not calls:
        return []
    begun = begun_in(*await _stopped_at(config, runtime, arrived=arrived))
    _, recorded = _finished(begun.finished)
    waited = {call["id"] for call in loop["waiting"]}
    events: list[StoredEvent] = []
    for call in calls:
        certain = call["id"] in waited or begun.is_certain(call["id"], ledger=loop.get("ledger", False))
        reason, status = (REMOVED, "skipped") if certain else (REMOVED_LATE, "unknown")
        told = result_event(call["id"], call["name"], status, reason, loop["step"])
        events += recorded.get(call["id"], [told])
    return events


async def _stopped_at(
    config: RunnableConfig, runtime: Runtime[Any], *, arrived: bool = False
) -> tuple[CheckpointTuple | None, list[CheckpointTuple]]:
    """The checkpoint that the newest wave was held at, and those it was edited from, newest first.

    Args:
        config: The node's config.
        runtime: The node's runtime.
        arrived: Whether this run has run the wave; else it was an earlier one.
    """
    saver = checkpointer_of(config)
    stopped = await _before_input(config, runtime, arrived=arrived)
    return stopped, await edited_from(saver, stopped) if saver is not None else []


async def _before_input(
    config: RunnableConfig, runtime: Runtime[Any], *, arrived: bool = False
) -> CheckpointTuple | None:
    """The checkpoint the session stopped at before this input came; None without one, or without a saver."""
    saver, running = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is None or running is None:
        return None
    at = await _once_stored(saver, running)
    if at is None:
        # Under durability="exit" nothing of this run is stored yet: the newest is where the last one stopped.
        newest = {key: value for key, value in running["configurable"].items() if key != "checkpoint_id"}
        return await load(saver, {"configurable": newest})
    if arrived:
        return await _parent(saver, at)
    if at.metadata.get("source") == "loop":
        edited = await _parent(saver, at)
        if edited is not None and edited.metadata.get("source") in _BY_A_PERSON:
            return edited  # nothing was left to run after an edit, so that this run has come straight to `plan`
    # Each input is a checkpoint of its own, and one more follows before `plan` runs. An input whose plan was never
    # finished left nothing else behind, so what stopped lies before it.
    while at is not None:
        given = at if at.metadata.get("source") == "input" else await _parent(saver, at)
        if given is None or given.metadata.get("source") != "input":
            return at
        at = await _parent(saver, given)
    return None


async def _parent(saver: BaseCheckpointSaver[Any], at: CheckpointTuple) -> CheckpointTuple | None:
    return await load(saver, at.parent_config) if at.parent_config is not None else None


async def _once_stored(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> CheckpointTuple | None:
    """The running checkpoint, waited for: under durability="async" a node may run before it is stored."""
    for _ in range(_TRIES):
        if (found := await load(saver, config)) is not None:
            return found
        await asyncio.sleep(_PAUSE_S)
    return None
