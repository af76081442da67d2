"""Reaching the running graph's own checkpoint from inside a node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of, keep_checkpoint_ids_above, loads_older_checkpoint
from graph_agent._internal.sync_bridge import in_blocking_run
from graph_agent.runs.run import RUN, run_of


def running_checkpoint(config: RunnableConfig, runtime: Runtime[Any]) -> RunnableConfig | None:
    """The config that addresses the checkpoint a node runs from; None in a run that keeps nothing.

    It names the run, too: what is stored with it is refused once another run has continued the session.

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
            RUN: run_of(config),
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


def namespaces_unseen(configurable: Mapping[str, Any]) -> list[str]:
    """The checkpoint namespaces whose newest checkpoint may be above every one that a run loads itself.

    That is the run's own namespace where the run starts from an older checkpoint, and the namespaces around it where
    it is part of somebody else's graph, which has made its ids by the clock alone.

    Args:
        configurable: The run's `configurable`, before the run is named in it.
    """
    own: str = configurable.get("checkpoint_ns", "")
    found = [own] if loads_older_checkpoint(configurable) else []
    if own and checkpointer_of({"configurable": {**configurable}}) is not None and RUN not in configurable:
        parts = own.split("|")
        found += ["|".join(parts[:count]) for count in range(len(parts))]
    return found


async def keep_ids_above_newest(saver: BaseCheckpointSaver[Any], thread_id: str, namespaces: Sequence[str]) -> None:
    """Have new checkpoint ids be higher than all that are in some namespaces of a thread.

    Args:
        saver: Where the checkpoints are.
        thread_id: The thread.
        namespaces: Checkpoint namespaces.
    """
    for namespace in namespaces:
        newest = await load(saver, {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}})
        if newest is not None:
            keep_checkpoint_ids_above(newest.checkpoint["id"])


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
