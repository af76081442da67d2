"""The format number of checkpoints, by which a process refuses those of a newer version of this package.

A checkpoint's metadata has the number; version 0.1.0 stored none. A version that only adds fields keeps the number: an
older process ignores them, so both can serve one database during a rolling upgrade. A version whose checkpoints an
older one would misread increases it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from graph_agent.errors import NewerFormatError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointMetadata, CheckpointTuple

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


def with_format(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return the metadata of a checkpoint with the format number of this version."""
    return cast("CheckpointMetadata", {**metadata, FORMAT_KEY: FORMAT})


def guard_format(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch a saver to refuse checkpoints of a newer format, also in the list of one thread.

    Those of other graphs have no number.
    """
    if getattr(saver, _PATCHED, False):
        return
    get_tuple, aget_tuple, list_, alist = saver.get_tuple, saver.aget_tuple, saver.list, saver.alist

    def reading(config: RunnableConfig) -> CheckpointTuple | None:
        found = get_tuple(config)
        return _check(found) if found is not None else None

    async def areading(config: RunnableConfig) -> CheckpointTuple | None:
        found = await aget_tuple(config)
        return _check(found) if found is not None else None

    # A listing of all threads is not refused for the sake of one.
    def listing(config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        for found in list_(config, **options):
            yield found if config is None else _check(found)

    async def alisting(config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        async for found in alist(config, **options):
            yield found if config is None else _check(found)

    # Patched in place: `database_identity` reads the saver's connection, which a wrapper would hide.
    saver.get_tuple = reading  # type: ignore[method-assign]
    saver.aget_tuple = areading  # type: ignore[method-assign]
    saver.list = listing  # type: ignore[method-assign]
    saver.alist = alisting  # type: ignore[method-assign]
    setattr(saver, _PATCHED, True)


def _check(found: CheckpointTuple) -> CheckpointTuple:
    check_format(found.metadata, str(found.config["configurable"]["thread_id"]))
    return found
