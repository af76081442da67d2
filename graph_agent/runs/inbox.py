"""What is said to a session while it is at work, or before its next input: an ordered box of notes."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from langgraph.store.base import BaseStore, Op, PutOp, SearchOp

from graph_agent._internal.sync_bridge import in_blocking_run, to_its_end

NoteKind = Literal["steer", "follow_up", "abort", "configure"]


@dataclass(frozen=True, slots=True)
class Note:
    """One thing said to a session."""

    key: str
    """Its place in the order, and its identity: a session takes in no key twice."""
    kind: NoteKind
    content: Any = ""
    """The user's words for `steer` and `follow_up`; fields of the configuration for `configure`."""

    @property
    def sent_ns(self) -> int:
        """When it was sent: nanoseconds of the sender's wall clock."""
        return int(self.key.partition("-")[0])


class Inbox(Protocol):
    """Where notes wait until the session takes them in. They stay until they are forgotten."""

    async def add(self, session_id: str, note: Note) -> None:
        """Put a note behind the others."""
        ...

    async def read(self, session_id: str) -> list[Note]:
        """All notes that are there, in the order they were sent; empty for none."""
        ...

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """Take notes out; keys that are not there are no error."""
        ...


class MemoryInbox:
    """Notes of one process's sessions. Any thread may use it."""

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, Note]] = {}
        self._guard = threading.Lock()

    async def add(self, session_id: str, note: Note) -> None:
        """As `Inbox.add`."""
        with self._guard:
            self._notes.setdefault(session_id, {})[note.key] = note

    async def read(self, session_id: str) -> list[Note]:
        """As `Inbox.read`."""
        notes = self._notes.get(session_id)
        return sorted(notes.copy().values(), key=lambda note: note.key) if notes else []

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """As `Inbox.forget`."""
        with self._guard:
            left = {key: note for key, note in self._notes.pop(session_id, {}).items() if key not in keys}
            if left:
                self._notes[session_id] = left


def new_note(kind: NoteKind, content: Any = "") -> Note:
    """A note with a key behind every key this process has made before."""
    return Note(f"{_clock.next_ns():020d}-{uuid.uuid4().hex[:8]}", kind, content)


def note_from(key: str, value: Mapping[str, Any]) -> Note | None:
    """A note as another process wrote it; None for what is no note."""
    if value.get("kind") not in ("steer", "follow_up", "abort", "configure") or not key.partition("-")[0].isdecimal():
        return None
    return Note(key, value["kind"], value.get("content", ""))


class _Clock:
    """The wall clock, never the same twice and never backwards within a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next_ns(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last


_clock = _Clock()


_PAGE = 100


def inbox_namespace(session_id: str) -> tuple[str, ...]:
    """The Store namespace that holds one session's notes.

    Any client of the Store may put a note there: its key is `<20-digit time in ns>-<anything unique>`, its value
    `{"kind": "steer" | "follow_up" | "abort" | "configure", "content": …}`.
    """
    return _namespace("inbox", session_id)


def _namespace(kind: str, box: str) -> tuple[str, ...]:
    # A namespace label may hold no period.
    return ("graph_agent", kind, box.replace("%", "%25").replace(".", "%2E"))


class StoreInbox:
    """An `Inbox` in a Store.

    Args:
        store: The store; one that only blocks is used from a thread.
        kind: What its notes are to; those of one kind are never among those of another.
    """

    def __init__(self, store: BaseStore, kind: str = "inbox") -> None:
        self._store = store
        self._kind = kind

    async def add(self, session_id: str, note: Note) -> None:
        """As `Inbox.add`."""
        value = {"kind": note.kind, "content": note.content}
        await self._do([PutOp(_namespace(self._kind, session_id), note.key, value, index=False)])

    async def read(self, session_id: str) -> list[Note]:
        """As `Inbox.read`."""
        namespace = _namespace(self._kind, session_id)
        if await self._is_empty(namespace):
            return []
        notes: list[Note] = []
        read = 0
        while True:
            (found,) = await self._do([SearchOp(namespace, limit=_PAGE, offset=read)])
            # A search matches by prefix.
            notes += [
                note for item in found if item.namespace == namespace if (note := note_from(item.key, item.value))
            ]
            read += len(found)
            if len(found) < _PAGE:
                return sorted(notes, key=lambda note: note.key)

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """As `Inbox.forget`."""
        namespace = _namespace(self._kind, session_id)
        await self._do([PutOp(namespace, key, None) for key in keys])

    async def _is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether there is surely nothing, where the store can say so at less than the cost of a search."""
        peek = getattr(self._store, "is_empty", None)
        return peek is not None and self._is_here() and bool(await peek(namespace))

    def _is_here(self) -> bool:
        # A store with a loop of its own is asked on that loop; elsewhere its locks and futures are of no use.
        loop = getattr(self._store, "loop", None)
        return not in_blocking_run.get() and loop in (None, asyncio.get_running_loop())

    async def _do(self, ops: Sequence[Op]) -> list[Any]:
        if self._is_here():
            try:
                return await to_its_end(self._store.abatch(ops))
            except NotImplementedError:
                pass  # a store that only blocks
        return await asyncio.to_thread(self._store.batch, ops)
