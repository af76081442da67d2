"""Reads and writes the checkpoint that a node runs from, and finds those that a person edited or copied into it.

Also finds what guards and queues the writes of a run's own checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.runtime import Runtime

from graph_agent.base._compat import inherits_durability
from graph_agent.core.state.fence import CheckpointFence, DeferredWrites
from graph_agent.core.state.run import AgentHandle, handle_of, run_of, with_handle

BY_A_PERSON = ("update", "fork")
"""Values of `source` in the metadata of checkpoints that `update_state` stored, or that fork from an older
checkpoint."""


def fence_of(config: RunnableConfig) -> CheckpointFence | None:
    """Return the fence of the run that a request to the checkpointer belongs to; None if it is of no agent's run."""
    run = handle_of(config["configurable"]).run
    return run.fence if run is not None else None


def deferred_of(config: RunnableConfig) -> DeferredWrites | None:
    """Return the queue of writes of the run that a request to the checkpointer belongs to.

    None if the request must be committed at once: of no agent's run, of a run that defers nothing, or of a graph inside
    the run that inherits `durability="sync"`.
    """
    configurable = config["configurable"]
    run = handle_of(configurable).run
    if run is None or run.deferred is None:
        return None
    is_own = configurable.get("checkpoint_ns", "") == run.deferred.namespace
    return run.deferred if is_own or not inherits_durability(configurable, "sync") else None


def running_checkpoint(config: RunnableConfig, runtime: Runtime[Any]) -> RunnableConfig | None:
    """Return a config that addresses the checkpoint that a node runs from; None in a run without checkpoints.

    The config contains the run's handle, so that writes with it are refused once another run has continued the session.
    """
    info = runtime.execution_info
    if info is None or info.thread_id is None:
        return None
    at = {
        "thread_id": info.thread_id,
        "checkpoint_ns": config["configurable"].get("checkpoint_ns", "").rpartition("|")[0],
        "checkpoint_id": info.checkpoint_id,
    }
    return {"configurable": with_handle(at, AgentHandle(run_of(config)))}


async def load(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> CheckpointTuple | None:
    """Return a checkpoint with its pending writes; None if it does not exist."""
    return await saver.aget_tuple(config)


_TRIES, _PAUSE_S = 200, 0.005


async def load_running(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> CheckpointTuple | None:
    """Return the checkpoint that a node runs from, waiting for up to one second until it is stored; None if it is not.

    LangGraph starts the first nodes of a run, also of a replay, while their checkpoint is being stored.
    """
    for _ in range(_TRIES):
        if (found := await load(saver, config)) is not None:
            return found
        await asyncio.sleep(_PAUSE_S)
    return None


async def newest_before(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> RunnableConfig | None:
    """Return the config of a thread's newest checkpoint before the one in `config`; None if there is none."""
    configurable = config["configurable"]
    thread: RunnableConfig = {
        "configurable": {"thread_id": configurable["thread_id"], "checkpoint_ns": configurable.get("checkpoint_ns", "")}
    }
    return await anext((found.config async for found in saver.alist(thread, before=config, limit=1)), None)


async def edit_ancestors(saver: BaseCheckpointSaver[Any], found: CheckpointTuple | None) -> list[CheckpointTuple]:
    """Return the checkpoints that `update_state` edited or copied into `found`, newest first; empty if there are none.

    People edit or copy a stopped session in LangGraph Studio; with these checkpoints, finished calls keep their
    results, and calls held by a breakpoint still run. Other copies of the same original are included. The search ends
    at an edit of an older checkpoint, which goes back in time to repeat the work from there, and at the fork that a
    replay of an older checkpoint stores.

    Args:
        found: The checkpoint that the run starts from; None gives an empty list.
    """
    before: list[CheckpointTuple] = []
    copies: list[CheckpointTuple] = []
    while found is not None and found.metadata.get("source") in BY_A_PERSON:
        newest = await newest_before(saver, found.config)
        older = await load(saver, newest) if newest is not None else None
        if older is None:
            break
        if _have_one_original(found, older):
            copies.append(older)
        elif _is_made_from(found, older):
            before += [*copies, older]
            copies = []
        else:
            break
        found = older
    return before


def _is_made_from(found: CheckpointTuple, original: CheckpointTuple) -> bool:
    """Whether `found`, made by a person, is an edit or a copy of `original`, the newest checkpoint before it.

    An edit has it as its parent. A copy has the same channel versions and the next step; the fork of a replay of an
    older checkpoint has another step.
    """
    if found.metadata.get("source") == "update":
        parent = found.parent_config or {}
        return parent.get("configurable", {}).get("checkpoint_id") == original.checkpoint["id"]
    # A copy has the parent of its original. The fork of a replay has the step of the checkpoint after its parent.
    return (
        found.checkpoint["channel_versions"] == original.checkpoint["channel_versions"]
        and found.metadata.get("step", 0) == original.metadata.get("step", 0) + 1
    )


def _have_one_original(copy: CheckpointTuple, other: CheckpointTuple) -> bool:
    """Whether two checkpoints look like copies of the same one: forks with equal parent, step and channel versions.

    The forks of two replays look the same.
    """
    return (
        copy.metadata.get("source") == other.metadata.get("source") == "fork"
        and copy.checkpoint["channel_versions"] == other.checkpoint["channel_versions"]
        and copy.metadata.get("step") == other.metadata.get("step")
        and copy.parent_config == other.parent_config
    )


async def put_writes(
    saver: BaseCheckpointSaver[Any], config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str
) -> None:
    """Store pending writes of a checkpoint and wait until they are committed, also in a run that defers its writes.
    Raises the saver's error, or in such a run that of the first failed write.

    Args:
        writes: Pairs of channel and value.
        task_id: Id under which the writes are stored; a second call with it replaces them, as the saver's rules allow.
    """
    await saver.aput_writes(config, writes, task_id)
    if (deferred := deferred_of(config)) is not None:
        await deferred.flush()
