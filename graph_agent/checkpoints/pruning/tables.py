"""Declares what pruning needs of a database, and makes full copies of delta channels from their stored bytes.

To construct a session's messages takes several times as long as to copy their bytes, and a session is copied whole each
time it is pruned. A history whose writes only add entries is therefore joined as it is stored. Any other history, and a
damaged one, is read as a run reads it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_PYDANTIC_V2
from langgraph.checkpoint.serde.types import TASKS

from graph_agent._compat.checkpoints import delta_snapshot
from graph_agent._internal.garbage import paused_collection
from graph_agent._internal.sync_bridge import call_in_thread
from graph_agent.checkpoints.format import FORMAT, FORMAT_KEY
from graph_agent.checkpoints.pruning.plan import (
    At,
    Copies,
    Mark,
    NamespacePlan,
    Node,
    ThreadState,
    agent_deltas,
    config_at,
    delta_values,
)
from graph_agent.errors import OperatorError
from graph_agent.runs.input_ids import INPUT_ID
from graph_agent.state.lengths import lengths_of

Statement = tuple[str, Sequence[Any]]
"""SQL, and a list of its parameters for each execution."""
METADATA = ("counters_since_delta_snapshot", "parents", "source", INPUT_ID, FORMAT_KEY)
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
class Batch:
    """Checkpoints that are removed together."""

    ids: Sequence[str]
    """The checkpoints; no other remaining one is a descendant, except those in `parents` and theirs."""
    parents: Mapping[str, str | None]
    """Remaining checkpoint whose parent is removed → its new parent; None if there is none."""
    leftovers: Sequence[str]
    """Checkpoints without descendants that are removed next; noted in case the process ends before."""


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
        """Remove checkpoints and their writes, in one transaction.

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

    counts: dict[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = {}

    def share_counts(found: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return counts.setdefault(found, found)

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
                delta_writes=share_counts(tuple((name, writes[name][0]) for name in sorted(names & writes.keys()))),
                delta_bytes=sum(size for name, (_, size) in writes.items() if name in names)
                + (row.size if row.values & names else 0),
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


_MESSAGES = frozenset({"AIMessage", "ChatMessage", "FunctionMessage", "HumanMessage", "SystemMessage", "ToolMessage"})
"""Message classes of langchain-core that the reducer appends if their id is new."""
_MODULES = "langchain_core.messages."


class StoredObject:
    """An object as it is stored: the code of its kind, and its packed fields."""

    __slots__ = ("code", "packed")

    def __init__(self, code: int, packed: bytes) -> None:
        self.code = code
        self.packed = packed


class OpaqueSerializer(SerializerProtocol):
    """Reads msgpack data without constructing the objects in it, which are a `StoredObject`."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the stored value; raise `ValueError` if it is no msgpack, or damaged."""
        if data[0] != "msgpack":
            raise ValueError(f"the stored type is {data[0]!r}")
        return _unpack(data[1])

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the value as it is stored."""
        return "msgpack", _pack(obj)


class FullCopies:
    """Makes the full copies of one namespace of a thread, by its plan."""

    def __init__(self, tables: Tables, saver: BaseCheckpointSaver[Any], at: At, plan: NamespacePlan) -> None:
        self._tables = tables
        self._saver = saver
        self._at = at
        self._plan = plan
        self._newest = max(plan.nodes)
        self._joined: Mapping[str, _Joined] = {}
        """The histories at the newest checkpoint; empty if they are not read, or have another form."""

    async def check_newest(self) -> None:
        """Check that the whole history at the newest checkpoint can be read; raise `DamagedSessionError` if not."""
        channels = sorted(self._plan.nodes[self._newest].foldable)
        joined = await self._read(self._newest, channels)
        if joined is None:
            await delta_values(self._saver, self._at, self._newest, channels)
        self._joined = joined or {}

    async def make(self, checkpoint_id: str, channels: Iterable[str]) -> Copies:
        """Return a serialized full copy, at a checkpoint, of delta channels that have no stored value in it.

        Raises `DamagedSessionError` if a part of the history is missing.
        """
        names = sorted(channels)
        joined = await self._before_newest(checkpoint_id, names)
        if joined is None:
            joined = await self._read(checkpoint_id, names)
        if joined is None:
            values = await delta_values(self._saver, self._at, checkpoint_id, names)
            return {name: self._saver.serde.dumps_typed(delta_snapshot(value)) for name, value in values.items()}
        found = joined
        return await call_in_thread(lambda: {name: _copy_of(each.entries) for name, each in found.items()})

    async def _before_newest(self, checkpoint_id: str, names: Sequence[str]) -> dict[str, _Joined] | None:
        """Return the histories of an ancestor of the newest checkpoint: those of the newest without its last writes."""
        since = self._plan.writes_since(checkpoint_id, self._newest) if self._joined.keys() >= {*names} else None
        lengths = await self._lengths(checkpoint_id)
        if since is None or lengths is None:
            return None
        found = {name: self._joined[name].without_last(since[name]) for name in names}
        return found if all(len(each.entries) >= lengths.get(name, 0) for name, each in found.items()) else None

    async def _read(self, checkpoint_id: str, names: Sequence[str]) -> dict[str, _Joined] | None:
        """Return the history of each channel; None if it must be read as a run reads it."""
        lengths = await self._lengths(checkpoint_id)
        if lengths is None:
            return None
        try:
            histories = await self._tables.opaque_history(self._at, checkpoint_id, names)
            return await call_in_thread(lambda: _joined(histories, lengths))
        except ValueError:
            return None  # the other way of reading raises the error that names the session

    async def _lengths(self, checkpoint_id: str) -> Mapping[str, int] | None:
        """Return the lengths that are stored with a checkpoint; None if it does not exist."""
        found = await self._saver.aget_tuple(config_at(self._at, checkpoint_id))
        return lengths_of(found.metadata) if found is not None else None


@dataclass(frozen=True, slots=True)
class _Joined:
    """The history of one channel."""

    entries: list[Any]
    """The entries of the last full copy, and those of all writes after it."""
    added: list[int]
    """The number of entries of each write."""

    def without_last(self, writes: int) -> _Joined:
        """Return the history before its last writes."""
        kept = len(self.added) - writes
        return _Joined(self.entries[: len(self.entries) - sum(self.added[kept:])], self.added[:kept])


def _joined(histories: Mapping[str, DeltaChannelHistory], lengths: Mapping[str, int]) -> dict[str, _Joined] | None:
    joined: dict[str, _Joined] = {}
    with paused_collection():
        for name, history in histories.items():
            found = _join(history)
            if found is None or len(found.entries) < lengths.get(name, 0):
                return None
            only_adds = _only_new_messages if name == "messages" else _are_events
            if not only_adds(found.entries, len(found.entries) - sum(found.added)):
                return None
            joined[name] = found
    return joined


def _join(history: DeltaChannelHistory) -> _Joined | None:
    """Return the history; None if a value has another form than a list."""
    entries: list[Any] = []
    if "seed" in history:
        seed: Any = history["seed"]
        if not isinstance(seed, StoredObject) or seed.code != EXT_DELTA_SNAPSHOT:
            return None
        entries = _unpack(seed.packed)
    writes = [value for _, _, value in history["writes"]]
    if ("seed" not in history and not writes) or not all(type(value) is list for value in (entries, *writes)):
        return None
    return _Joined([*entries, *(entry for value in writes for entry in value)], [len(value) for value in writes])


def _are_events(entries: list[Any], before: int) -> bool:
    return all(type(entry) is dict for entry in entries[before:])


def _only_new_messages(entries: list[Any], before: int) -> bool:
    """Whether all entries from a position on are messages of known classes with ids of their own."""
    ids: list[Any] = []
    for position, entry in enumerate(entries):
        if not isinstance(entry, StoredObject) or entry.code != EXT_PYDANTIC_V2:
            return False
        module, name, fields, *_ = _unpack(entry.packed)
        if position >= before and not (module.startswith(_MODULES) and name in _MESSAGES and fields.get("id")):
            return False
        ids.append(fields.get("id"))
    old, new = ids[:before], ids[before:]
    return len(set(new)) == len(new) and set(new).isdisjoint(old)


def _copy_of(entries: list[Any]) -> tuple[str, bytes]:
    return "msgpack", _pack(StoredObject(EXT_DELTA_SNAPSHOT, _pack(entries)))


def _pack(value: Any) -> bytes:
    return ormsgpack.packb(value, default=_extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _extension(value: Any) -> ormsgpack.Ext:
    if isinstance(value, StoredObject):
        return ormsgpack.Ext(value.code, value.packed)
    raise TypeError(f"{type(value).__name__} is not stored data")


def _unpack(stored: bytes) -> Any:
    return ormsgpack.unpackb(stored, ext_hook=StoredObject, option=ormsgpack.OPT_NON_STR_KEYS)
