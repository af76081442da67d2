"""Checks the checkpoint that a run starts from, and changes the metadata of those that it stores.

LangGraph's savers copy every text, number and boolean of `configurable` into a checkpoint's metadata, unless its key
begins with two underscores. A secret that a program passes there, to reach its tools, would be in the database in plain
text, so these entries are removed. `config["metadata"]` is stored unchanged; LangGraph adds `run_id`, `task_id`,
`assistant_id`, `graph_id` and `model` to it, if `configurable` has them.

The format number and the mark of an input are added when a checkpoint is stored, so that all are committed together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)

from graph_agent.base._compat import checkpointer_of
from graph_agent.base._compat.checkpoints import loads_older_checkpoint, raise_checkpoint_id_floor
from graph_agent.base.errors import InputError
from graph_agent.base.input_ids import RECENT_INPUTS
from graph_agent.core.runs.own_checkpoint import load
from graph_agent.core.runs.run import handle_of
from graph_agent.core.state.lengths import entries_of, with_lengths
from graph_agent.storage.checkpoints.format import with_format
from graph_agent.storage.locks.registry import RECENT_RUNS


def _namespaces_to_check(configurable: Mapping[str, Any]) -> list[str]:
    """Return the checkpoint namespaces that may have checkpoint ids higher than any that a run loads itself.

    These are the run's own namespace if it starts from an older checkpoint, and the parent namespaces if it runs inside
    a foreign graph, whose checkpoint ids depend only on the clock.
    """
    own: str = configurable.get("checkpoint_ns", "")
    found = [own] if loads_older_checkpoint(configurable) else []
    handle, saver = handle_of(configurable), checkpointer_of({"configurable": {**configurable}})
    if own and saver is not None and handle.run is None and handle.parent is None:
        parts = own.split("|")
        found += ["|".join(parts[:count]) for count in range(len(parts))]
    return found


async def check_start(saver: BaseCheckpointSaver[Any], configurable: Mapping[str, Any]) -> None:
    """Check a run or an update that starts from an older checkpoint, and make its ids higher than all existing ones.

    Raises `InputError` if the checkpoint does not exist, from which LangGraph would begin the session anew.
    """
    thread_id, checkpoint_id = str(configurable.get("thread_id", "")), configurable.get("checkpoint_id")
    if checkpoint_id and not configurable.get("checkpoint_ns"):
        named = {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
        if await load(saver, {"configurable": named}) is None:
            raise InputError(
                f"Session {thread_id!r} has no checkpoint {checkpoint_id!r}: `prune` may have removed it. Continue "
                "from one of those that `get_state_history` lists; fork a session to keep one of its steps."
            )
    for namespace in _namespaces_to_check(configurable):
        newest = await load(saver, {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}})
        if newest is not None:
            raise_checkpoint_id_floor(newest.checkpoint["id"])


_ADDRESS = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"})

_METADATA_PATCHED = "_stores_run_metadata"


def patch_metadata(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch a saver to store format number and input mark of agents' runs, and nothing of their `configurable`.

    Runs of other graphs are not affected.
    """
    if getattr(saver, _METADATA_PATCHED, False):
        return
    put, aput = saver.put, saver.aput

    def storing(
        config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        config, metadata = _as_stored(config, metadata, checkpoint["id"])
        return put(config, checkpoint, metadata, new_versions)

    async def astoring(
        config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        config, metadata = _as_stored(config, metadata, checkpoint["id"])
        return await aput(config, checkpoint, metadata, new_versions)

    # Patched in place: `database_identity` reads the saver's connection, which a wrapper would hide.
    saver.put = storing  # type: ignore[method-assign]
    saver.aput = astoring  # type: ignore[method-assign]
    setattr(saver, _METADATA_PATCHED, True)


def _as_stored(
    config: RunnableConfig, metadata: CheckpointMetadata, checkpoint_id: str
) -> tuple[RunnableConfig, CheckpointMetadata]:
    """Return the config and the metadata with which a saver stores a checkpoint.

    For an agent's run, the config has no value of the program, and the metadata has the format and the mark of the
    run's input. Delegates and subgraphs have no mark. A run of a server adds the ids of the runs before it, and a run
    in a saver without an index of input ids those of the inputs before it.
    """
    configurable = config.get("configurable", {})
    entries, metadata = entries_of(metadata), with_lengths(metadata)
    if (run := handle_of(configurable).run) is None:
        return config, metadata
    # Checkpoints hold their address, and the keys that LangGraph never stores.
    kept = {name: value for name, value in configurable.items() if name in _ADDRESS or name.startswith("__")}
    at: RunnableConfig = {**config, "configurable": kept}
    numbered = with_format(metadata)
    if entries:
        run.stored_lists = checkpoint_id, entries
    if configurable.get("checkpoint_ns"):
        return at, numbered
    identity = run.identity
    mark = identity.mark.metadata if identity.mark is not None else {}
    recent = {RECENT_RUNS: list(identity.recent_runs)} if identity.recent_runs else {}
    inputs: dict[str, Any] = {}
    if identity.inputs_before is not None and RECENT_INPUTS not in metadata:  # `aput` of some savers calls `put`
        inputs = {RECENT_INPUTS: identity.inputs_before}
        identity.inputs_before = (
            checkpoint_id if isinstance(identity.inputs_before, Mapping) else identity.inputs_before
        )
    return at, cast("CheckpointMetadata", {**numbered, **mark, **recent, **inputs})
