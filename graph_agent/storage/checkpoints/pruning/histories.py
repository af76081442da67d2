"""Joins and copies the histories of delta channels as they are stored.

To construct a session's messages takes several times as long as to copy their bytes. Writes that only add entries are
therefore put together as they are stored. Other writes are moved one by one, or a history with them, and a damaged one,
is read as a run reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_PYDANTIC_V2

from graph_agent.base._compat.checkpoints import delta_snapshot
from graph_agent.base._internal.garbage import paused_collection
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.core.state.lengths import lengths_of
from graph_agent.storage.checkpoints.format import part_of_history
from graph_agent.storage.checkpoints.pruning.plan import At, Copies, Join, NamespacePlan, config_at, delta_values
from graph_agent.storage.checkpoints.pruning.tables import StoredWrite, Tables, Write

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


class Histories:
    """Copies and joins the histories of one namespace of a thread, by its plan."""

    def __init__(self, tables: Tables, saver: BaseCheckpointSaver[Any], at: At, plan: NamespacePlan) -> None:
        self._tables = tables
        self._saver = saver
        self._at = at
        self._plan = plan

    async def check(self) -> None:
        """Check that the history at the newest checkpoint can be read; raise `DamagedSessionError` if not.

        It is read if it is joined for the first time, or not stored again at all. `join` checks what is joined later.
        """
        nodes, newest = self._plan.nodes, max(self._plan.nodes)
        within = self._plan.heads | {id_ for group in self._plan.joins for id_ in group.ids}
        begin = [nodes[group.ids[0]] for group in self._plan.joins if not group.channels <= nodes[group.ids[0]].stored]
        is_new = any(not node.is_joined and node.parent not in within for node in begin)
        is_cut = any((parent := nodes[id_].parent) is not None and parent not in nodes for id_ in self._plan.heads)
        if is_new or is_cut or (not self._plan.joins and newest not in self._plan.folds):
            await self.copy(newest, nodes[newest].foldable)

    async def copy(self, checkpoint_id: str, channels: Iterable[str]) -> Copies:
        """Return a serialized full copy, at a checkpoint, of delta channels that have no stored value in it.

        Raises `DamagedSessionError` if a part of the history is missing.
        """
        names = sorted(channels)
        lengths = await self._lengths(checkpoint_id)
        try:
            histories = await self._tables.opaque_history(self._at, checkpoint_id, names)
            return await call_in_thread(lambda: _copies(histories, lengths))
        except ValueError:
            # The other way of reading raises the error that names the session.
            values = await delta_values(self._saver, self._at, checkpoint_id, names)
            return {name: self._saver.serde.dumps_typed(delta_snapshot(value)) for name, value in values.items()}

    async def join(self, group: Join) -> list[Write]:
        """Return the writes of a group for its first checkpoint; raise `DamagedSessionError` if some are missing."""
        writes = await self._tables.writes_of(self._at, group.ids, sorted(group.channels))
        before, after = await self._lengths(group.ids[0]), await self._lengths(group.next)
        added = {name: after.get(name, 0) - before.get(name, 0) for name in group.channels}
        try:
            return await call_in_thread(lambda: _joined(group, writes, added))
        except ValueError:
            await delta_values(self._saver, self._at, group.next, sorted(group.channels))
            return [(write.channel, write.type, write.value) for write in _in_order(group, writes)]

    async def _lengths(self, checkpoint_id: str) -> Mapping[str, int]:
        """Return the lengths that are stored with a checkpoint."""
        found = await self._saver.aget_tuple(part_of_history(config_at(self._at, checkpoint_id)))
        return lengths_of(found.metadata) if found is not None else {}


def _copies(histories: Mapping[str, DeltaChannelHistory], lengths: Mapping[str, int]) -> Copies:
    """Return full copies of histories that only grew; raise `ValueError` for others."""
    copies: dict[str, tuple[str, bytes]] = {}
    with paused_collection():
        for name, history in histories.items():
            seed, written = _seed(history), [value for _, _, value in history["writes"]]
            if "seed" not in history and not written:
                raise ValueError("there is no history")
            added = _only_added(name, written, seed)
            if len(seed) + len(added) < lengths.get(name, 0):
                raise ValueError("entries are missing")
            copies[name] = "msgpack", _pack(StoredObject(EXT_DELTA_SNAPSHOT, _pack([*seed, *added])))
    return copies


def _joined(group: Join, writes: Sequence[StoredWrite], lengths: Mapping[str, int]) -> list[Write]:
    """Return one write a channel; raise `ValueError` for writes that do more than add, or are fewer than `lengths`."""
    found: dict[str, list[Any]] = {}
    rows: list[Write] = []
    with paused_collection():
        for write in _in_order(group, writes):
            found.setdefault(write.channel, []).append(OpaqueSerializer().loads_typed((write.type, write.value)))
        for name in sorted(group.channels):
            added = _only_added(name, found.get(name, []))
            if len(added) < lengths[name]:
                raise ValueError("entries are missing")
            if added:
                rows.append((name, "msgpack", _pack(added)))
    return rows


def _in_order(group: Join, writes: Sequence[StoredWrite]) -> list[StoredWrite]:
    position = {id_: at for at, id_ in enumerate(group.ids)}
    return sorted(writes, key=lambda write: position[write.checkpoint_id])  # stable within each checkpoint


def _seed(history: DeltaChannelHistory) -> list[Any]:
    seed: Any = history.get("seed", StoredObject(EXT_DELTA_SNAPSHOT, _pack([])))
    entries = _unpack(seed.packed) if isinstance(seed, StoredObject) and seed.code == EXT_DELTA_SNAPSHOT else None
    if not isinstance(entries, list):
        raise ValueError("the full copy is no list")
    return entries


def _only_added(channel: str, written: Sequence[Any], before: Sequence[Any] = ()) -> list[Any]:
    """Return the entries of writes that only add; raise `ValueError` if one does more.

    Without the entries `before`, a write may also replace one of these, which it does as a part of a longer write, too.
    """
    if not all(type(value) is list for value in written):
        raise ValueError("a write is no list")
    added = [entry for value in written for entry in value]
    if channel != "messages":
        if not all(type(entry) is dict for entry in added):
            raise ValueError("an entry is no event")
    elif len({*map(_id_of, before), *map(_new_id_of, added)}) < len(before) + len(added):
        raise ValueError("a message is replaced")
    return added


def _id_of(entry: Any) -> Any:
    """Return a message's id, at its stored place; raise `ValueError` for another object."""
    return _fields_of(entry)[2].get("id") or id(entry)


def _new_id_of(entry: Any) -> Any:
    """Return the id of a message of a class that the reducer appends; raise `ValueError` for another one."""
    module, name, fields, *_ = _fields_of(entry)
    if not (module.startswith(_MODULES) and name in _MESSAGES and fields.get("id")):
        raise ValueError(f"{name} is no plain message")
    return fields["id"]


def _fields_of(entry: Any) -> Any:
    if not isinstance(entry, StoredObject) or entry.code != EXT_PYDANTIC_V2:
        raise ValueError("an entry is no message")
    return _unpack(entry.packed)


def _pack(value: Any) -> bytes:
    return ormsgpack.packb(value, default=_extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _extension(value: Any) -> ormsgpack.Ext:
    if isinstance(value, StoredObject):
        return ormsgpack.Ext(value.code, value.packed)
    raise TypeError(f"{type(value).__name__} is not stored data")


def _unpack(stored: bytes) -> Any:
    return ormsgpack.unpackb(stored, ext_hook=StoredObject, option=ormsgpack.OPT_NON_STR_KEYS)
