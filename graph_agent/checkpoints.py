"""Reaching the running graph's own checkpoint from inside a node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.runtime import Runtime

from graph_agent.blocking import in_blocking_run


def running_checkpoint(config: RunnableConfig, runtime: Runtime[Any]) -> RunnableConfig | None:
    """The config that addresses the checkpoint a node runs from; None in a run that keeps nothing.

    Args:
        config: The node's config.
        runtime: The node's runtime.
    """
    info = runtime.execution_info
    if info is None or info.thread_id is None:
        return None
    return {
        "configurable": {
            "thread_id": info.thread_id,
            "checkpoint_ns": config["configurable"].get("checkpoint_ns", "").rpartition("|")[0],
            "checkpoint_id": info.checkpoint_id,
        }
    }


async def load(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> CheckpointTuple | None:
    """Read a checkpoint; None where there is none."""
    if not in_blocking_run.get():
        try:
            return await saver.aget_tuple(config)
        except NotImplementedError:
            pass  # a saver that only blocks
    return await asyncio.to_thread(saver.get_tuple, config)


async def newest_before(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> str | None:
    """The id of the checkpoint that was stored last before another one of its thread; None for none."""
    at = config["configurable"]
    thread: RunnableConfig = {
        "configurable": {"thread_id": at["thread_id"], "checkpoint_ns": at.get("checkpoint_ns", "")}
    }
    if not in_blocking_run.get():
        try:
            return await anext(
                (found.checkpoint["id"] async for found in saver.alist(thread, before=config, limit=1)), None
            )
        except NotImplementedError:
            pass  # a saver that only blocks
    listed = await asyncio.to_thread(lambda: list(saver.list(thread, before=config, limit=1)))
    return listed[0].checkpoint["id"] if listed else None


async def edited_from(saver: BaseCheckpointSaver[Any], found: CheckpointTuple | None) -> list[CheckpointTuple]:
    """The checkpoints that a person has edited into this one (`update_state`), newest first; empty for no edit.

    A checkpoint that the session had left behind is not among them: an edit of it goes back, to do the same work again.

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


async def put_writes(
    saver: BaseCheckpointSaver[Any], config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str
) -> None:
    """Store writes beside a checkpoint, under a task of that id."""
    if not in_blocking_run.get():
        try:
            await saver.aput_writes(config, writes, task_id)
        except NotImplementedError:
            pass  # as above
        else:
            return
    await asyncio.to_thread(saver.put_writes, config, writes, task_id)
