"""Settling calls that an earlier run left open: with their real result, or with the truth that none is known."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of
from graph_agent.events import StoredEvent, event
from graph_agent.intake import in_order, open_calls, with_results
from graph_agent.telling import result_event

_TRIES, _PAUSE_S = 200, 0.005

NEVER_STARTED = "Not run: the run was interrupted while this call waited for others."
UNKNOWN = (
    "The run was interrupted before this call's result was recorded. It is not known whether the call ran or took "
    "effect; check before repeating it."
)


async def settle(
    messages: list[AnyMessage], config: RunnableConfig, runtime: Runtime[Any], step: int, unstarted: Collection[str]
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
        step: The step the open calls belong to.
        unstarted: Ids of the calls that were planned and had to wait.

    Returns:
        The conversation with the results in place, and their events; the very same one when there is nothing to settle.
    """
    whole = len(messages)
    messages = in_order(messages)
    events: list[StoredEvent] = []
    if dropped := whole - len(messages):
        left_out = f"Results that answer no call, or one that has its result, were left out: {dropped}."
        events.append(event("warning", step, message=left_out))
    found = open_calls(messages)
    if not found:
        return messages, events
    finished, recorded = await _finished(config, runtime)
    results: dict[tuple[int, str], ToolMessage] = {}
    for group in found:
        for call in group.calls:
            id_ = call["id"] or ""
            # Ids may repeat in a session: only the newest calls can have been under way.
            newest = group is found[-1]
            if newest and id_ in finished:
                results[group.at, id_] = finished[id_]
                events.extend(recorded.get(id_, []))
            elif newest and id_ in unstarted:
                results[group.at, id_], told = never_run(id_, call["name"], NEVER_STARTED, step)
                events.append(told)
            else:
                results[group.at, id_] = ToolMessage(UNKNOWN, tool_call_id=id_, name=call["name"], status="error")
                events.append(result_event(id_, call["name"], "unknown", UNKNOWN, step))
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


async def _finished(
    config: RunnableConfig, runtime: Runtime[Any]
) -> tuple[dict[str, ToolMessage], dict[str, list[StoredEvent]]]:
    """Results and events of the calls that had finished before the input that is being taken in, by call id."""
    stopped = await _before_input(config, runtime)
    messages: dict[str, ToolMessage] = {}
    events: dict[str, list[StoredEvent]] = {}
    for _, channel, value in (stopped.pending_writes or []) if stopped else []:
        for item in value if isinstance(value, list) else []:
            if channel == "messages" and isinstance(item, ToolMessage):
                messages[item.tool_call_id] = item
            elif channel == "events" and isinstance(item, dict) and "id" in item:
                events.setdefault(item["id"], []).append(item)
    return messages, events


async def _before_input(config: RunnableConfig, runtime: Runtime[Any]) -> CheckpointTuple | None:
    """The checkpoint the session stopped at before this input came; None without one, or without a saver."""
    saver = checkpointer_of(config)
    info = runtime.execution_info
    if saver is None or info is None or info.thread_id is None:
        return None
    thread = {
        "thread_id": info.thread_id,
        "checkpoint_ns": config["configurable"].get("checkpoint_ns", "").rpartition("|")[0],
    }
    at = await _once_stored(saver, {"configurable": {**thread, "checkpoint_id": info.checkpoint_id}})
    if at is None:
        # Under durability="exit" nothing of this run is stored yet: the newest is where the last one stopped.
        return await _load(saver, {"configurable": thread})
    # Each input is a checkpoint of its own, and one more follows before `plan` runs. An input whose plan was never
    # finished left nothing else behind, so what stopped lies before it.
    while at is not None:
        given = at if at.metadata.get("source") == "input" else await _parent(saver, at)
        if given is None or given.metadata.get("source") != "input":
            return at
        at = await _parent(saver, given)
    return None


async def _parent(saver: BaseCheckpointSaver[Any], at: CheckpointTuple) -> CheckpointTuple | None:
    return await _load(saver, at.parent_config) if at.parent_config is not None else None


async def _once_stored(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> CheckpointTuple | None:
    """The running checkpoint, waited for: under durability="async" a node may run before it is stored."""
    for _ in range(_TRIES):
        if (found := await _load(saver, config)) is not None:
            return found
        await asyncio.sleep(_PAUSE_S)
    return None


async def _load(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> CheckpointTuple | None:
    try:
        return await saver.aget_tuple(config)
    except NotImplementedError:
        # A blocking entry point may bring a saver that blocks too.
        return await asyncio.to_thread(saver.get_tuple, config)
