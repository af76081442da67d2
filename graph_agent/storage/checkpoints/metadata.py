"""Checks the checkpoint that a run starts from, and changes the metadata of those that it stores.

LangGraph's savers copy every text, number and boolean of `configurable` into a checkpoint's metadata, unless its key
begins with two underscores. A secret that a program passes there, to reach its tools, would be in the database in plain
text, so these entries are removed. `config["metadata"]` is stored unchanged; LangGraph adds `run_id`, `task_id`,
`assistant_id`, `graph_id` and `model` to it, if `configurable` has them.

The format number of the package and the mark of an input (the metadata of the id that its sender gave it) are added
when a checkpoint is stored, so that all are committed together. Delegates and subgraphs are graphs inside a run, each
with a checkpoint namespace of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata

from graph_agent.base._compat import checkpointer_of
from graph_agent.base._compat.checkpoints import loads_older_checkpoint, raise_checkpoint_id_floor
from graph_agent.base.errors import InputError
from graph_agent.base.input_ids import RECENT_INPUTS
from graph_agent.core.state.lengths import entries_of, with_lengths
from graph_agent.core.state.own_checkpoint import load
from graph_agent.core.state.registry import RECENT_RUNS
from graph_agent.core.state.run import handle_of
from graph_agent.storage.checkpoints.format import with_format


def _namespaces_to_check(configurable: Mapping[str, Any]) -> list[str]:
    """Return the checkpoint namespaces in which a new checkpoint might get a lower id than an existing one.

    They are the own namespace, if the run starts from an older checkpoint, and all outer namespaces, if it is a node of
    a graph of another package; a run does not load their newest checkpoints, and only loading one makes all later ids
    of the process higher. Empty in other cases. `configurable` is that of the run's config.
    """
    own: str = configurable.get("checkpoint_ns", "")
    found = [own] if loads_older_checkpoint(configurable) else []
    handle, saver = handle_of(configurable), checkpointer_of({"configurable": {**configurable}})
    if own and saver is not None and handle.run is None and handle.parent is None:
        parts = own.split("|")
        found += ["|".join(parts[:count]) for count in range(len(parts))]
    return found


async def check_start(saver: BaseCheckpointSaver[Any], configurable: Mapping[str, Any]) -> None:
    """Prepare the checkpoint ids of a run or an update, and check the checkpoint that it starts from.

    Ids of new checkpoints are made higher than all existing ones in the namespaces that the run does not load itself.
    `configurable` is that of the run's config. Raises `InputError` if it names a checkpoint of the root namespace that
    does not exist: LangGraph would begin the session anew.
    """
    thread_id, checkpoint_id = str(configurable.get("thread_id", "")), configurable.get("checkpoint_id")
    if checkpoint_id and not configurable.get("checkpoint_ns"):
        named = {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
        if await load(saver, {"configurable": named}) is None:
            raise InputError(
                f"Session {thread_id!r} has no checkpoint {checkpoint_id!r}: `prune` may have removed it. Continue "
                "from one of those that `get_state_history` lists; fork a session to keep one of its steps."
            )
    # The newest checkpoint is the one with the highest id. A clock that was set back would else make a new checkpoint
    # an old one.
    for namespace in _namespaces_to_check(configurable):
        newest = await load(saver, {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}})
        if newest is not None:
            raise_checkpoint_id_floor(newest.checkpoint["id"])


_ADDRESS = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"})
"""Keys of `configurable` that address a checkpoint."""

_METADATA_PATCHED = "_stores_run_metadata"
"""Name of the attribute that marks a saver as patched by `patch_metadata`."""


def patch_metadata(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch `put` and `aput` of a saver, in place, for the runs of agents.

    A stored checkpoint then has the format number and the mark of its input in its metadata, and none of the program's
    entries in `configurable`. Runs of other graphs are not affected. A second call has no effect.
    """
    if getattr(saver, _METADATA_PATCHED, False):
        return
    put, aput = saver.put, saver.aput

    def storing(
        config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Store a checkpoint like `put`, with the config and the metadata that `_as_stored` returns for them."""
        config, metadata = _as_stored(config, metadata, checkpoint["id"])
        return put(config, checkpoint, metadata, new_versions)

    async def astoring(
        config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Store a checkpoint like `aput`, with the config and the metadata that `_as_stored` returns for them."""
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

    For a run of an agent, the config keeps of `configurable` only the address and the keys with two leading
    underscores. The metadata gains the format number and the lengths of the growing lists; in the root namespace also
    the mark of the run's input and the ids of the server's runs before it. For a saver without an index of input ids,
    it gains the recent inputs, once per run. For another graph, only lengths are moved to a field of their own.

    Also records in the run its lists with this checkpoint's id, and that its recent inputs are stored.
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
