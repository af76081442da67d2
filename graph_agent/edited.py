"""Checkpoints that a person has edited (`update_state`): what they were made from, and the results that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, PendingWrite

from graph_agent.checkpoints import load, newest_before

Write = tuple[str, Any]
"""A state field, and what is written to it."""

_OF_A_RESULT = ("messages", "events", "usage", "arrived")


async def edited_from(saver: BaseCheckpointSaver[Any], found: CheckpointTuple | None) -> list[CheckpointTuple]:
    """The checkpoints that were edited into this one, newest first; empty for one that nobody has edited.

    One that the session had left behind is not among them: who edits it goes back, to do the same work again.

    Args:
        saver: The session's saver.
        found: The checkpoint; None for none.
    """
    before: list[CheckpointTuple] = []
    while found is not None and found.metadata.get("source") == "update" and found.parent_config is not None:
        parent = await load(saver, found.parent_config)
        if parent is None or parent.checkpoint["id"] != await newest_before(saver, found.config):
            break
        before.append(parent)
        found = parent
    return before


def finished_writes(pending: Sequence[PendingWrite]) -> dict[str, list[Write]]:
    """The writes of the tasks that had answered a call when a run stopped, by call id.

    Args:
        pending: What is stored beside a checkpoint.
    """
    tasks: dict[str, list[Write]] = {}
    for task, channel, value in pending:
        if channel in _OF_A_RESULT:
            tasks.setdefault(task, []).append((channel, value))
    return {
        message.tool_call_id: writes
        for writes in tasks.values()
        # A person's own edit is stored in the same way, and arrives from no call.
        if any(channel == "arrived" for channel, _ in writes)
        for channel, value in writes
        if channel == "messages"
        for message in value
        if isinstance(message, ToolMessage)
    }
