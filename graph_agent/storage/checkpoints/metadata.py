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
from graph_agent.core.runs.input_ids import RECENT_INPUTS
from graph_agent.core.runs.own_checkpoint import load
from graph_agent.core.runs.run import RUN, Run
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
    if own and checkpointer_of({"configurable": {**configurable}}) is not None and RUN not in configurable:
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
                "from one of those that `get_state_history` lists; to keep more, prune with a higher keep_last."
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
        return put(_without_configurable(config), checkpoint, _marked(metadata, config, checkpoint["id"]), new_versions)

    async def astoring(
        config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        return await aput(
            _without_configurable(config), checkpoint, _marked(metadata, config, checkpoint["id"]), new_versions
        )

    # Patched in place: `database_identity` reads the saver's connection, which a wrapper would hide.
    saver.put = storing  # type: ignore[method-assign]
    saver.aput = astoring  # type: ignore[method-assign]
    setattr(saver, _METADATA_PATCHED, True)


def bare(config: RunnableConfig) -> RunnableConfig:
    """Return a config whose `configurable` has the checkpoint's address and keys that LangGraph never stores."""
    configurable = config.get("configurable", {})
    kept = {name: value for name, value in configurable.items() if name in _ADDRESS or name.startswith("__")}
    return {**config, "configurable": kept}


def _without_configurable(config: RunnableConfig) -> RunnableConfig:
    return bare(config) if RUN in config.get("configurable", {}) else config


def _marked(metadata: CheckpointMetadata, config: RunnableConfig, checkpoint_id: str) -> CheckpointMetadata:
    """Return the metadata of a checkpoint with its format, and with the mark of its run's input.

    Delegates and subgraphs have no mark. A run of a server adds the ids of the runs before it, and a run in a saver
    without an index of input ids those of the inputs before it.
    """
    configurable = config.get("configurable", {})
    entries, metadata = entries_of(metadata), with_lengths(metadata)
    if RUN not in configurable:
        return metadata
    numbered, run = with_format(metadata), configurable[RUN]
    if isinstance(run, Run) and entries:
        run.stored_lists = checkpoint_id, entries
    if not isinstance(run, Run) or configurable.get("checkpoint_ns"):
        return numbered
    mark = run.mark.metadata if run.mark is not None else {}
    recent = {RECENT_RUNS: list(run.recent_runs)} if run.recent_runs else {}
    inputs: dict[str, Any] = {}
    if run.inputs_before is not None and RECENT_INPUTS not in metadata:  # `aput` of some savers calls `put`
        inputs = {RECENT_INPUTS: run.inputs_before}
        run.inputs_before = checkpoint_id if isinstance(run.inputs_before, Mapping) else run.inputs_before
    return cast("CheckpointMetadata", {**numbered, **mark, **recent, **inputs})
