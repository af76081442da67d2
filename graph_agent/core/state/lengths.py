"""Stores the lengths of a session's growing lists with each checkpoint, and compares them when it is read.

A checkpoint holds no copy of the messages and events: they are rebuilt from the writes of its ancestors. Without the
lengths, a lost ancestor or write would go unnoticed, as the lists would only be shorter.
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
"""Key of the lengths in a checkpoint's metadata; the value is a mapping of channel → number of entries."""

COUNTERS = "counters_since_delta_snapshot"
"""Key in the metadata of LangGraph's own counters of its delta channels."""

_MARK = -1
"""Second number of an entry among these counters that is a length."""


class Length(int):
    """The length of a channel's list, with the list itself as an attribute; it is stored as a plain number."""

    entries: list[Any]
    """The list."""


def add_length(counters: dict[str, tuple[int, int]], channel: str, entries: list[Any]) -> None:
    """Add the length of a channel's list to LangGraph's counters, which become a part of the checkpoint's metadata.

    Args:
        counters: LangGraph's counters by channel; changed in place.
        channel: Name of the channel.
        entries: The channel's whole list.
    """
    # `int()` of it is stored.
    length = Length(len(entries))
    # A saver that receives the metadata can take the list from it instead of rebuilding it.
    length.entries = entries
    counters[f"{channel} {LENGTHS}"] = length, _MARK


def entries_of(metadata: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return channel → list from the metadata of a checkpoint being stored; empty for metadata read from a database."""
    counters: Mapping[str, tuple[int, int]] = metadata.get(COUNTERS) or {}
    return {
        name.partition(" ")[0]: length.entries for name, (length, _) in counters.items() if isinstance(length, Length)
    }


def with_lengths(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return a checkpoint's metadata with the lengths moved from LangGraph's counters to a key of their own, `LENGTHS`.

    Metadata without lengths is returned unchanged.
    """
    known: Any = metadata
    counters: Mapping[str, tuple[int, int]] = known.get(COUNTERS) or {}
    lengths = {name.partition(" ")[0]: int(number) for name, (number, mark) in counters.items() if mark == _MARK}
    if not lengths:
        return metadata
    rest = {name: counter for name, counter in counters.items() if counter[1] != _MARK}
    kept = {**known, COUNTERS: rest} if rest else {name: known[name] for name in known if name != COUNTERS}
    return cast("CheckpointMetadata", {**kept, LENGTHS: lengths})


def lengths_of(metadata: Mapping[str, Any] | None) -> Mapping[str, int]:
    """Return channel → length from a checkpoint's metadata; empty if an older version stored it, or for None."""
    found = (metadata or {}).get(LENGTHS)
    # Metadata may be edited by other programs.
    return found if isinstance(found, dict) else {}


class CheckedWrites(list[Any]):
    """The stored writes of one channel, with the number of entries that replaying them must give.

    Args:
        expected: That number; None if it is not known, and then nothing is checked.
        session_id: Session for the error message.
    """

    def __init__(self, writes: Sequence[Any], expected: int | None, session_id: str) -> None:
        super().__init__(writes)
        self.expected = expected
        self.session_id = session_id

    def check(self, found: int) -> None:
        """Raise `DamagedSessionError` if fewer entries were rebuilt than are stored; more are accepted.

        Args:
            found: Number of entries rebuilt from these writes.
        """
        # More entries are possible: writes of a crashed superstep count, too.
        if self.expected is not None and found < self.expected:
            raise damaged(self.session_id, f"{found} of {self.expected} entries of its history can be read")


def checked(
    history: Mapping[str, DeltaChannelHistory], lengths: Mapping[str, int], session_id: str
) -> dict[str, DeltaChannelHistory]:
    """Return the histories of delta channels with `CheckedWrites` in place of their writes, to check lengths on replay.

    Args:
        lengths: Channel → expected number of entries; a channel without one is not checked.
        session_id: Session for the error message.
    """
    return {
        name: {**each, "writes": CheckedWrites(each["writes"], lengths.get(name), session_id)}
        for name, each in history.items()
    }


class CheckpointRemovedError(DamagedSessionError):
    """A pruning removed a checkpoint between two queries of one read; the session is intact and can be read again."""


_MOST_READS = 5
"""Maximum times that a session is read while prunings remove the checkpoint that each read began with."""


async def read_again(read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `read`, which is called up to `_MOST_READS` times while it raises `CheckpointRemovedError`.

    The last of these errors is raised, and any other exception at once.
    """
    # The last attempt is outside the loop, so that its error reaches the caller.
    for _ in range(_MOST_READS - 1):
        with suppress(CheckpointRemovedError):
            return await read()
    return await read()


def read_again_blocking(read: Callable[[], T]) -> T:
    """Return the result of `read`, which is called up to `_MOST_READS` times while it raises `CheckpointRemovedError`.

    The last of these errors is raised, and any other exception at once.
    """
    for _ in range(_MOST_READS - 1):
        with suppress(CheckpointRemovedError):
            return read()
    return read()


def removed(session_id: str, checkpoint_id: str) -> CheckpointRemovedError:
    """Return the error for a checkpoint that a pruning removed while it was read; its `session_id` is set."""
    error = CheckpointRemovedError(
        f"Checkpoint {checkpoint_id} of session {session_id!r} was removed while it was read, as `prune` does. Read "
        "the session again."
    )
    error.session_id = session_id
    return error


def damaged(session_id: str, what: str) -> DamagedSessionError:
    """Return the error for a session that cannot be read completely; its `session_id` is set.

    Args:
        what: What is wrong, as a clause such as "3 of 5 entries of its history can be read".
    """
    error = DamagedSessionError(
        f"Session {session_id!r} is damaged in its database: {what}. Nothing was run or stored. Restore the database "
        "from a backup, continue the session from an earlier checkpoint, or begin another one."
    )
    error.session_id = session_id
    return error
