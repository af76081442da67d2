"""Stores answers of inputs with an id apart from the checkpoints that produced them, which can then be removed."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.types import TASKS

from graph_agent._compat import delta_snapshot, replay_delta
from graph_agent.checkpoints.pruning.plan import CHANNELS, delta_values
from graph_agent.state.lengths import COUNTERS, LENGTHS

_INTERNAL = ("__", "branch:")
"""Prefixes of LangGraph's own channels."""


async def has_answer(saver: BaseCheckpointSaver[Any], thread_id: str, checkpoint_id: str) -> bool:
    """Whether an input ended with a checkpoint of the root namespace, so that no task starts from it."""
    found = await saver.aget_tuple(_at(thread_id, checkpoint_id))
    if found is None:
        return False
    values = found.checkpoint["channel_values"]
    return not values.get(TASKS) and not any(name.startswith(("branch:", "__start__")) for name in values)


async def answer_of(
    saver: BaseCheckpointSaver[Any], thread_id: str, checkpoint_id: str
) -> tuple[Checkpoint, CheckpointMetadata]:
    """Return the checkpoint with an answer as the namespace of answers has it: with the input's own history only.

    Args:
        checkpoint_id: The last checkpoint of the input.
    """
    found = await saver.aget_tuple(_at(thread_id, checkpoint_id))
    assert found is not None  # the session is locked
    own = {name: delta_snapshot(value) for name, value in (await _own_history(saver, thread_id, found)).items()}
    values = {name: each for name, each in found.checkpoint["channel_values"].items() if not name.startswith(_INTERNAL)}
    values = {**values, **own}
    versions = {name: found.checkpoint["channel_versions"][name] for name in values}
    checkpoint: Any = {**found.checkpoint, "channel_values": values, "channel_versions": versions, "versions_seen": {}}
    metadata: Any = {name: each for name, each in found.metadata.items() if name not in (COUNTERS, LENGTHS)}
    return checkpoint, metadata


async def _own_history(saver: BaseCheckpointSaver[Any], thread_id: str, found: CheckpointTuple) -> dict[str, list[Any]]:
    """Return the messages and events of the input that a checkpoint ends, from its user message on."""
    first_id = (found.checkpoint["channel_values"].get("loop") or {}).get("last_input_id")
    steps: list[list[tuple[str, str, Any]]] = []
    at: CheckpointTuple | None = found
    while at is not None and at.parent_config is not None:
        at = await saver.aget_tuple(at.parent_config)
        steps.append([write for write in (at.pending_writes or () if at is not None else ()) if write[1] in CHANNELS])
        if not _only_adds(steps[-1]):
            break
        if any(getattr(message, "id", None) == first_id for message in _entries(steps[-1], "messages")):
            writes = [write for step in reversed(steps) for write in step]
            histories: Any = {name: {"writes": [each for each in writes if each[1] == name]} for name in CHANNELS}
            entries = {name: replay_delta(channel, histories[name]) for name, channel in CHANNELS.items()}
            if (own := _since_input(entries, first_id)) is not None:
                return own
    at_end = (thread_id, ""), found.checkpoint["id"]
    stored = {name: getattr(found.checkpoint["channel_values"].get(name), "value", None) for name in CHANNELS}
    whole = await delta_values(saver, *at_end, [name for name, value in stored.items() if value is None])
    entries = {name: value for name, value in {**stored, **whole}.items() if value is not None}
    return _since_input(entries, first_id) or entries


def _since_input(entries: dict[str, list[Any]], first_id: str | None) -> dict[str, list[Any]] | None:
    """Return the entries from the user message of the newest input on; None if they do not reach back to it."""
    events, messages = entries["events"], entries["messages"]
    begun = [at for at, event in enumerate(events) if event["type"] == "user_message"]
    sent = [at for at, message in enumerate(messages) if message.id == first_id]
    return {"events": events[begun[-1] :], "messages": messages[sent[-1] :]} if begun and sent else None


def _only_adds(writes: list[tuple[str, str, Any]]) -> bool:
    """Whether writes only add entries, so that they can be replayed without the entries before them."""
    added = _entries(writes, "messages")
    return all(isinstance(each, BaseMessage) and not isinstance(each, RemoveMessage) for each in added) and all(
        isinstance(event, dict) for event in _entries(writes, "events")
    )


def _entries(writes: list[tuple[str, str, Any]], channel: str) -> list[Any]:
    written = [value for _, name, value in writes if name == channel]
    return [each for value in written for each in (value if isinstance(value, list) else [value])]


def _at(thread_id: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}
