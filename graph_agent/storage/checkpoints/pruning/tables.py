"""Declares what pruning needs of a database, and reads its rows as the nodes of a plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import TASKS

from graph_agent.base.errors import OperatorError
from graph_agent.base.input_ids import INPUT_ID
from graph_agent.storage.checkpoints.format import FORMAT, FORMAT_KEY, JOINED
from graph_agent.storage.checkpoints.pruning.plan import At, Copies, Mark, Node, ThreadState, agent_deltas

Write = tuple[str, str, bytes]
"""Channel, type and value of a stored write."""
Statement = tuple[str, Sequence[Any]]
"""SQL, and a list of its parameters for each execution."""
METADATA = ("counters_since_delta_snapshot", "parents", "source", INPUT_ID, FORMAT_KEY, JOINED)
"""The keys of a checkpoint's metadata that are read."""


class UnreadableCheckpointError(OperatorError):
    """A checkpoint is stored in a form that cannot be read here, e.g. encrypted."""


class ThreadChangedError(Exception):
    """A checkpoint that is to be removed has become the parent of a new one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint as it is stored."""

    namespace: str
    id: str
    parent: str | None
    ts: str
    version: int
    versions: frozenset[str]
    """Channels with a version."""
    values: frozenset[str]
    """Channels with a stored value."""
    metadata: Mapping[str, Any]
    size: int
    """Bytes of the checkpoint and its metadata."""


@dataclass(frozen=True, slots=True)
class StoredWrite:
    """One write of a task, as it is stored."""

    namespace: str
    checkpoint_id: str
    task_id: str
    task_path: str
    channel: str
    type: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The first checkpoint of a group, with the writes that it receives instead of its own."""

    id: str
    writes: Sequence[Write]
    """The writes, in their order."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Checkpoints that are removed together."""

    ids: Sequence[str]
    """The checkpoints; no other remaining one is a descendant, except those in `parents` and theirs."""
    parents: Mapping[str, str | None]
    """Remaining checkpoint whose parent is removed → its new parent; None if there is none."""
    leftovers: Sequence[str]
    """Checkpoints without descendants that are removed next; noted in case the process ends before."""
    joined: Joined | None = None
    """The parent of the remaining checkpoint in `parents`, with the writes of the removed ones; None without one."""


LEFTOVER = "graph_agent_pruning"
"""Task id of the notes of leftovers: writes of a checkpoint without an id, whose channel is the leftover's id."""
Written = Mapping[tuple[str, str], Mapping[str, tuple[int, int]]]
"""Namespace and checkpoint → channel → number and bytes of its stored writes."""


Confirm = Callable[[], Awaitable[None]]
"""Verifies that no run of the thread has begun; raises otherwise."""


async def no_check() -> None:
    """Verify nothing."""


class Tables(Protocol):
    """The tables of LangGraph's savers in one database."""

    def recorder(self, serde: SerializerProtocol) -> tuple[BaseCheckpointSaver[Any], list[Statement]]:
        """Return a saver that stores nothing, and the list of statements that its blocking writes add to."""
        ...

    async def replace(
        self, thread_id: str, statements: Sequence[Statement], prefix: str, items: Sequence[tuple[str, Any]]
    ) -> None:
        """Delete a thread and its items in the Store, and store new ones, in one transaction.

        The `statements` store new checkpoints and writes. `prefix` is that of the items in the table of the Store.
        """
        ...

    async def threads(self) -> list[ThreadState]:
        """Return all threads, by one query."""
        ...

    async def mark(self, marks: Mapping[str, Mark]) -> None:
        """Store the marks of threads, in one transaction."""
        ...

    async def load(self, thread_id: str) -> dict[str, list[Node]]:
        """Return the checkpoints of a thread by namespace; raise `UnreadableCheckpointError` if one cannot be read."""
        ...

    async def stored_writes(self, thread_id: str) -> list[StoredWrite]:
        """Return all writes of a thread; those of one task are in their order."""
        ...

    async def writes_of(self, at: At, ids: Sequence[str], channels: Sequence[str]) -> list[StoredWrite]:
        """Return the writes of checkpoints to delta channels; those of one checkpoint are in LangGraph's order."""
        ...

    async def opaque_history(
        self, at: At, checkpoint_id: str, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return delta channels' history with objects as stored; raise `ValueError` if one is no msgpack or damaged."""
        ...

    async def store(self, statements: Sequence[Statement], confirm: Confirm = no_check) -> None:
        """Execute statements of a recorder, in one transaction."""
        ...

    async def add_copies(
        self, at: At, checkpoint_id: str, copies: Copies, *, dry_run: bool, confirm: Confirm = no_check
    ) -> int:
        """Add full copies of channels to a checkpoint, in one transaction; return the bytes by which it grows.

        With `dry_run`, only the bytes are returned. If `confirm`, called at the end, raises, nothing is stored.
        """
        ...

    async def remove(self, at: At, batch: Batch, newest: str, doomed: set[str], confirm: Confirm = no_check) -> None:
        """Remove checkpoints and their writes, and replace the writes of `batch.joined`, in one transaction.

        Raises `ThreadChangedError`, with nothing removed, if a checkpoint newer than `newest` has a `doomed` one, of
        all that are to be removed, as its parent.
        """
        ...

    async def clean(self, at: At, gone: set[str], *, dry_run: bool) -> int:
        """Remove the stored values of checkpoints `gone` that no remaining one refers to; return their bytes."""
        ...

    async def uncleaned(self, thread_id: str) -> list[str]:
        """Return the namespaces of a thread that a pruning left without `clean`, e.g. because it was killed."""
        ...

    async def size(self) -> int:
        """Return the bytes that the database takes on disk."""
        ...

    async def reclaim(self, is_idle: Callable[[], Awaitable[bool]]) -> None:
        """Return free space to the file system without blocking runs; rewrite the database only if `is_idle`."""
        ...


def nodes_of(rows: Iterable[Row], written: Written) -> dict[str, list[Node]]:
    """Return the nodes of a thread by namespace; raise `UnreadableCheckpointError` for those of a newer version."""
    found = list(rows)
    deltas = {row.namespace: set[str]() for row in found}
    for row in found:
        if (stored := row.metadata.get(FORMAT_KEY) or 1) > FORMAT:
            raise UnreadableCheckpointError(
                f"its checkpoints have format {stored}, of a newer version of graph-agent; this version reads {FORMAT}"
            )
        deltas[row.namespace] |= _counted(row) | agent_deltas(row.versions)
    shared: dict[frozenset[str], frozenset[str]] = {}

    def share(names: frozenset[str]) -> frozenset[str]:
        return shared.setdefault(names, names)

    nodes: dict[str, list[Node]] = {namespace: [] for namespace in deltas}
    for row in found:
        own = agent_deltas(row.versions)
        rebuilt = ((_counted(row) | own) & row.versions) - row.values
        writes = written.get((row.namespace, row.id), {})
        leftovers = written.get((row.namespace, ""), {})
        names = deltas[row.namespace]
        nodes[row.namespace].append(
            Node(
                id=row.id,
                parent=row.parent or None,
                ts=row.ts,
                within=_within(row),
                version=row.version,
                source=str(row.metadata.get("source") or ""),
                is_agent=bool(own),
                has_sends=TASKS in writes,
                ends_wave=bool(own) and "wave_finished" in writes,
                holds_input="__start__" in row.values,
                deltas=share(rebuilt),
                foldable=share(rebuilt & own),
                stored=share(row.values & names),
                is_leftover=row.id in leftovers,
                input_id=row.metadata.get(INPUT_ID),
                size=row.size + sum(size for _, size in writes.values()),
                writes=sum(number for number, _ in writes.values()),
                write_bytes=sum(size for _, size in writes.values()),
                delta_bytes=sum(size for name, (_, size) in writes.items() if name in names)
                + (row.size if row.values & names else 0),
                is_joined=bool(row.metadata.get(JOINED)),
            )
        )
    return nodes


def _counted(row: Row) -> frozenset[str]:
    """Return the delta channels that LangGraph counts the updates of."""
    counters = row.metadata.get("counters_since_delta_snapshot")
    return frozenset(counters) if isinstance(counters, dict) else frozenset()


def _within(row: Row) -> str | None:
    parents = row.metadata.get("parents")
    if not row.namespace or not isinstance(parents, dict) or not parents:
        return None
    found = parents[max((str(name) for name in parents), key=len)]
    return found if isinstance(found, str) else None
