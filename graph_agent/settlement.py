"""Settling calls that an earlier run left open: with their real result, or with the truth that none is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, PendingWrite
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of
from graph_agent.checkpoints import load, running_checkpoint
from graph_agent.edited import edited_from
from graph_agent.effects import begun_in
from graph_agent.events import StoredEvent, event
from graph_agent.intake import in_order, open_calls, with_results
from graph_agent.state import Bookkeeping
from graph_agent.telling import result_event

_TRIES, _PAUSE_S = 200, 0.005

NEVER_STARTED = "Not run: the run was interrupted while this call waited for others."
READING = "The run was interrupted before this call had finished. It only reads, so nothing was changed."
NEVER_BEGUN = "Not run: the run was interrupted before this call was begun."
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

    Returns:
        The conversation with the results in place, and their events; the very same one when there is nothing to settle.
    """
    step = loop["step"]
    whole = len(messages)
    messages = in_order(messages)
    events: list[StoredEvent] = []
    if dropped := whole - len(messages):
        left_out = f"Results that answer no call, or one that has its result, were left out: {dropped}."
        events.append(event("warning", step, message=left_out))
    found = open_calls(messages)
    if not found:
        return messages, events
    stopped = await _before_input(config, runtime)
    saver = checkpointer_of(config)
    before = await edited_from(saver, stopped) if saver is not None else []
    stored = [*reversed(before), stopped] if stopped else []
    finished, recorded = _finished([write for at in stored for write in at.pending_writes or []])
    waited = {call["id"] for call in loop["waiting"]}
    begun = begun_in(stopped, before)
    noted = begun.noted | {call["id"] for call in begun.perhaps}
    results: dict[tuple[int, str], ToolMessage] = {}
    for group in found:
        for call in group.calls:
            id_ = call["id"] or ""
            # Ids may repeat in a session: only the newest calls can have been under way.
            newest = group is found[-1]
            if newest and id_ in finished:
                results[group.at, id_] = finished[id_]
                events.extend(recorded.get(id_, []))
                continue
            reason, status = UNKNOWN, "unknown"
            if newest and id_ in waited:
                reason, status = NEVER_STARTED, "skipped"
            elif not writes(call["name"]):
                reason = READING
            elif newest and id_ not in noted and (loop.get("ledger") or id_ in begun.untouched):
                reason, status = NEVER_BEGUN, "skipped"
            results[group.at, id_] = ToolMessage(reason, tool_call_id=id_, name=call["name"], status="error")
            events.append(result_event(id_, call["name"], status, reason, step))
    return with_results(messages, results), events


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


def _finished(pending: Sequence[PendingWrite]) -> tuple[dict[str, ToolMessage], dict[str, list[StoredEvent]]]:
    """Results and events of the calls that had finished when a run stopped, by call id."""
    messages: dict[str, ToolMessage] = {}
    events: dict[str, list[StoredEvent]] = {}
    for _, channel, value in pending:
        for item in value if isinstance(value, list) else []:
            if channel == "messages" and isinstance(item, ToolMessage):
                messages[item.tool_call_id] = item
            elif channel == "events" and isinstance(item, dict) and "id" in item:
                events.setdefault(item["id"], []).append(item)
    return messages, events


async def _before_input(config: RunnableConfig, runtime: Runtime[Any]) -> CheckpointTuple | None:
    """The checkpoint the session stopped at before this input came; None without one, or without a saver."""
    saver, running = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is None or running is None:
        return None
    at = await _once_stored(saver, running)
    if at is None:
        # Under durability="exit" nothing of this run is stored yet: the newest is where the last one stopped.
        newest = {key: value for key, value in running["configurable"].items() if key != "checkpoint_id"}
        return await load(saver, {"configurable": newest})
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
