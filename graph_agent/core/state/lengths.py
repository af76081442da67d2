"""Stores the lengths of a session's growing lists with each checkpoint, and compares them when it is read.

A checkpoint holds no copy of the messages and events: they are rebuilt from the writes of its ancestors. Without the
lengths, a lost ancestor or write would only make them shorter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from graph_agent.base.errors import DamagedSessionError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointMetadata, DeltaChannelHistory


T = TypeVar("T")

LENGTHS = "graph_agent_lengths"
"""Key of the lengths in a checkpoint's metadata: channel → number of its entries."""

COUNTERS = "counters_since_delta_snapshot"
"""Key of LangGraph's own counters of its delta channels in the metadata."""

_MARK = -1
"""Second number of a length among these counters."""


class Length(int):
    """The length of a channel's list, with the list itself; it is stored as a plain number."""

    entries: list[Any]


def add_length(counters: dict[str, tuple[int, int]], channel: str, entries: list[Any]) -> None:
    """Add the length of a channel's list to LangGraph's counters, which become a part of the metadata."""
    length = Length(len(entries))
    length.entries = entries
    counters[f"{channel} {LENGTHS}"] = length, _MARK


def entries_of(metadata: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the lists whose lengths a run stores, by channel; none in metadata that was stored."""
    counters: Mapping[str, tuple[int, int]] = metadata.get(COUNTERS) or {}
    return {
        name.partition(" ")[0]: length.entries for name, (length, _) in counters.items() if isinstance(length, Length)
    }


def with_lengths(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return the metadata of a checkpoint with its lengths in a field of their own."""
    known: Any = metadata
    counters: Mapping[str, tuple[int, int]] = known.get(COUNTERS) or {}
    lengths = {name.partition(" ")[0]: int(number) for name, (number, mark) in counters.items() if mark == _MARK}
    if not lengths:
        return metadata
    rest = {name: counter for name, counter in counters.items() if counter[1] != _MARK}
    kept = {**known, COUNTERS: rest} if rest else {name: known[name] for name in known if name != COUNTERS}
    return cast("CheckpointMetadata", {**kept, LENGTHS: lengths})


def lengths_of(metadata: Mapping[str, Any] | None) -> Mapping[str, int]:
    """Return the lengths of a checkpoint by channel; empty if an older version stored it."""
    found = (metadata or {}).get(LENGTHS)
    return found if isinstance(found, dict) else {}


class CheckedWrites(list[Any]):
    """The stored writes of one channel, and how many entries, if known, they must result in."""

    def __init__(self, writes: Sequence[Any], expected: int | None, session_id: str) -> None:
        super().__init__(writes)
        self.expected = expected
        self.session_id = session_id

    def check(self, found: int) -> None:
        """Compare the number of entries rebuilt from these writes; raise `DamagedSessionError` if there are fewer."""
        if self.expected is not None and found < self.expected:
            raise damaged(self.session_id, f"{found} of {self.expected} entries of its history can be read")


def checked(
    history: Mapping[str, DeltaChannelHistory], lengths: Mapping[str, int], session_id: str
) -> dict[str, DeltaChannelHistory]:
    """Return the histories of channels, whose replay compares their lengths."""
    return {
        name: {**each, "writes": CheckedWrites(each["writes"], lengths.get(name), session_id)}
        for name, each in history.items()
    }


class CheckpointRemovedError(DamagedSessionError):
    """A pruning removed a checkpoint between two reads of it; the session is whole, and is read again."""


_MOST_READS = 5
"""Times that a session is read while prunings remove the checkpoints that were its newest."""


async def read_again(read: Callable[[], Awaitable[T]]) -> T:
    """Return what `read` returns, and call it again if a pruning removed the checkpoint that it read."""
    for _ in range(_MOST_READS - 1):
        with suppress(CheckpointRemovedError):
            return await read()
    return await read()


def read_again_blocking(read: Callable[[], T]) -> T:
    """Behaves like `read_again`."""
    for _ in range(_MOST_READS - 1):
        with suppress(CheckpointRemovedError):
            return read()
    return read()


def removed(session_id: str, checkpoint_id: str) -> CheckpointRemovedError:
    """Return the error for a checkpoint that a pruning removed while it was read."""
    error = CheckpointRemovedError(
        f"Checkpoint {checkpoint_id} of session {session_id!r} was removed while it was read, as `prune` does. Read "
        "the session again."
    )
    error.session_id = session_id
    return error


def damaged(session_id: str, what: str) -> DamagedSessionError:
    """Return the error for a session that cannot be read completely."""
    error = DamagedSessionError(
        f"Session {session_id!r} is damaged in its database: {what}. Nothing was run or stored. Restore the database "
        "from a backup, continue the session from an earlier checkpoint, or begin another one."
    )
    error.session_id = session_id
    return error
