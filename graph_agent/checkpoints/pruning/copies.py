"""Makes full copies of delta channels, joined from stored bytes where no reducer is needed.

To construct a session's messages takes several times as long as to copy their bytes, and a session is copied whole each
time it is pruned. A history whose writes only add entries is therefore joined as it is stored. Any other history, and a
damaged one, is read as a run reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_PYDANTIC_V2

from graph_agent._compat import delta_snapshot
from graph_agent._internal.garbage import paused_collection
from graph_agent._internal.sync_bridge import call_in_thread
from graph_agent.checkpoints.pruning.plan import At, Copies, NamespacePlan, config_at, delta_values
from graph_agent.checkpoints.pruning.tables import Tables
from graph_agent.state.lengths import lengths_of

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
        """Return the stored value.

        Raises:
            ValueError: If it is no msgpack, or damaged.
        """
        if data[0] != "msgpack":
            raise ValueError(f"the stored type is {data[0]!r}")
        return _unpack(data[1])

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the value as it is stored."""
        return "msgpack", _pack(obj)


class FullCopies:
    """Makes the full copies of one namespace of a thread.

    Args:
        plan: What happens to the namespace.
    """

    def __init__(self, tables: Tables, saver: BaseCheckpointSaver[Any], at: At, plan: NamespacePlan) -> None:
        self._tables = tables
        self._saver = saver
        self._at = at
        self._plan = plan
        self._newest = max(plan.nodes)
        self._joined: Mapping[str, _Joined] = {}
        """The histories at the newest checkpoint; empty if they are not read, or have another form."""

    async def check_newest(self) -> None:
        """Check that the whole history at the newest checkpoint can be read.

        Raises:
            DamagedSessionError: If a part of it is missing.
        """
        channels = sorted(self._plan.nodes[self._newest].foldable)
        joined = await self._read(self._newest, channels)
        if joined is None:
            await delta_values(self._saver, self._at, self._newest, channels)
        self._joined = joined or {}

    async def make(self, checkpoint_id: str, channels: Iterable[str]) -> Copies:
        """Return a serialized full copy of delta channels at a checkpoint, by channel.

        Args:
            channels: Names in `CHANNELS`; none of them has a stored value in the checkpoint.

        Raises:
            DamagedSessionError: If a part of the history is missing.
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
