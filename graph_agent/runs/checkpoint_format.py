"""The format number of checkpoints, by which a process refuses those of a newer version of this package.

A checkpoint's metadata has the number; version 0.1.0 stored none. A version that only adds fields keeps the number: an
older process ignores them, so both can serve one database during a rolling upgrade. A version whose checkpoints an
older one would misread increases it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from graph_agent.errors import NewerFormatError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
    )

FORMAT = 2
"""The format of this version's checkpoints, and the newest that it reads. Version 0.1.0 has format 1."""
FORMAT_KEY = "graph_agent_format"
"""Key of the number in a checkpoint's metadata."""
_PATCHED = "_guards_format"


def check_format(metadata: Mapping[str, Any], thread_id: str) -> None:
    """Check that this version can read a checkpoint.

    Args:
        metadata: The checkpoint's metadata.
        thread_id: Its thread, for the message.

    Raises:
        NewerFormatError: If it cannot.
    """
    found = metadata.get(FORMAT_KEY, 1)
    if found > FORMAT:
        raise NewerFormatError(
            f"Session {thread_id!r} was stored by a newer version of graph-agent: its checkpoints have format {found}, "
            f"and this version reads formats up to {FORMAT}. Upgrade this process."
        )


def guard_format(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch a saver to store the format number with agents' checkpoints, and to refuse those of a newer format.

    Checkpoints of other graphs are not affected.
    """
    if getattr(saver, _PATCHED, False):
        return
    put, aput, get_tuple, aget_tuple = saver.put, saver.aput, saver.get_tuple, saver.aget_tuple

    def storing(
        config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        return put(config, checkpoint, _numbered(metadata, config), new_versions)

    async def astoring(
        config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        return await aput(config, checkpoint, _numbered(metadata, config), new_versions)

    def reading(config: RunnableConfig) -> CheckpointTuple | None:
        return _checked(get_tuple(config))

    async def areading(config: RunnableConfig) -> CheckpointTuple | None:
        return _checked(await aget_tuple(config))

    # Patched in place: `database_identity` reads the saver's connection, which a wrapper would hide.
    saver.put = storing  # type: ignore[method-assign]
    saver.aput = astoring  # type: ignore[method-assign]
    saver.get_tuple = reading  # type: ignore[method-assign]
    saver.aget_tuple = areading  # type: ignore[method-assign]
    setattr(saver, _PATCHED, True)


def _numbered(metadata: CheckpointMetadata, config: RunnableConfig) -> CheckpointMetadata:
    # Imported here: it loads LangGraph, which reading the sessions of a file does not need.
    from graph_agent.runs.run import RUN

    if RUN not in config.get("configurable", {}):
        return metadata
    return cast("CheckpointMetadata", {**metadata, FORMAT_KEY: FORMAT})


def _checked(found: CheckpointTuple | None) -> CheckpointTuple | None:
    if found is not None:
        check_format(found.metadata, str(found.config["configurable"]["thread_id"]))
    return found
