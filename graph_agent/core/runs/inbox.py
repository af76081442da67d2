"""Stores notes (steering, follow-ups, aborts, configuration) for a session, in order, until a run processes them.

Each note is processed once, in order, also across a crash: the state holds the keys of processed notes, which are
removed from the inbox only after a later run has read that state back, which proves that it was stored.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from graph_agent.base._internal.sync_bridge import end_or_abandon, in_blocking_run

if TYPE_CHECKING:
    # LangGraph's Store takes long to import, and commands that only send a note do not need it.
    from langgraph.store.base import BaseStore, Op

T = TypeVar("T")
NoteKind = Literal["steer", "follow_up", "abort", "configure"]

_PAGE = 100
"""Maximum notes that one search of the Store returns."""


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """One message to a session from outside its run."""

    key: str
    """Sort key and identity: a session processes no key twice."""
    kind: NoteKind
    content: Any = ""
    """The user's text for `steer` and `follow_up`; fields of the configuration for `configure`."""

    @property
    def sent_ns(self) -> int:
        """Time of sending, in nanoseconds of the sender's wall clock."""
        return int(self.key.partition("-")[0])

    def as_value(self) -> dict[str, Any]:
        """Return its value in a Store."""
        return {"kind": self.kind, "content": self.content}


class Inbox(Protocol):
    """Storage of notes until the session has processed them. A note stays until it is removed with `forget`."""

    is_silent: bool
    """Whether its newest operation was stopped, did not end, and was left to itself."""

    async def add(self, session_id: str, note: ControlMessage) -> None:
        """Append a note."""
        ...

    async def read(self, session_id: str) -> list[ControlMessage]:
        """Return all notes, in the order they were sent; empty if there are none."""
        ...

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """Remove notes; unknown keys are ignored."""
        ...


class MemoryInbox:
    """An `Inbox` in this process's memory. Thread-safe."""

    is_silent = False

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, ControlMessage]] = {}
        self._guard = threading.Lock()

    async def add(self, session_id: str, note: ControlMessage) -> None:
        """Behaves like `Inbox.add`."""
        with self._guard:
            self._notes.setdefault(session_id, {})[note.key] = note

    async def read(self, session_id: str) -> list[ControlMessage]:
        """Behaves like `Inbox.read`."""
        notes = self._notes.get(session_id)
        return sorted(notes.copy().values(), key=lambda note: note.key) if notes else []

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """Behaves like `Inbox.forget`."""
        with self._guard:
            remaining = {key: note for key, note in self._notes.pop(session_id, {}).items() if key not in keys}
            if remaining:
                self._notes[session_id] = remaining


def new_note(kind: NoteKind, content: Any = "") -> ControlMessage:
    """Make a note whose key sorts after every key this process has made before."""
    return ControlMessage(f"{_clock.next_ns():020d}-{uuid.uuid4().hex[:8]}", kind, content)


def note_from(key: str, value: Mapping[str, Any]) -> ControlMessage | None:
    """Parse a note of another process; None if it is invalid."""
    if value.get("kind") not in ("steer", "follow_up", "abort", "configure") or not key.partition("-")[0].isdecimal():
        return None
    return ControlMessage(key, value["kind"], value.get("content", ""))


class _Clock:
    """The wall clock, strictly increasing within a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next_ns(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last


_clock = _Clock()


def inbox_namespace(session_id: str) -> tuple[str, ...]:
    """Return the Store namespace of one session's notes.

    Any client of the Store may put a note there: its key is `<20-digit time in ns>-<anything unique>`, its value
    `{"kind": "steer" | "follow_up" | "abort" | "configure", "content": …}`.
    """
    return _namespace("inbox", session_id)


def _namespace(kind: str, session_id: str) -> tuple[str, ...]:
    # A namespace label may not contain a period.
    return ("graph_agent", kind, session_id.replace("%", "%25").replace(".", "%2E"))


class StoreInbox:
    """An `Inbox` in a Store; one with blocking methods only is called in a thread.

    Inboxes of different kinds are separate. `stopped_for_s` returns the seconds since the session's run was stopped.
    """

    def __init__(
        self, store: BaseStore, kind: str = "inbox", *, stopped_for_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._store = store
        self._kind = kind
        self._stopped_for_s = stopped_for_s
        self.is_silent = False

    async def add(self, session_id: str, note: ControlMessage) -> None:
        """Behaves like `Inbox.add`."""
        from langgraph.store.base import PutOp

        await self._do([PutOp(_namespace(self._kind, session_id), note.key, note.as_value(), index=False)])

    async def read(self, session_id: str) -> list[ControlMessage]:
        """Behaves like `Inbox.read`."""
        from langgraph.store.base import SearchOp

        namespace = _namespace(self._kind, session_id)
        if await self._is_empty(namespace):
            return []
        notes: list[ControlMessage] = []
        read = 0
        while True:
            (found,) = await self._do([SearchOp(namespace, limit=_PAGE, offset=read)])
            # A search also returns namespaces below this one.
            notes += [
                note for item in found if item.namespace == namespace if (note := note_from(item.key, item.value))
            ]
            read += len(found)
            if len(found) < _PAGE:
                return sorted(notes, key=lambda note: note.key)

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """Behaves like `Inbox.forget`."""
        from langgraph.store.base import PutOp

        namespace = _namespace(self._kind, session_id)
        await self._do([PutOp(namespace, key, None) for key in keys])

    async def _is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether the store reports the namespace as empty, if it can at less than the cost of a search."""
        peek = getattr(self._store, "is_empty", None)
        return peek is not None and self._is_on_its_loop() and bool(await self._answer(peek(namespace)))

    def _is_on_its_loop(self) -> bool:
        # The locks and futures of a store with a loop of its own work on that loop only.
        loop = getattr(self._store, "loop", None)
        return not in_blocking_run.get() and loop in (None, asyncio.get_running_loop())

    async def _do(self, ops: Sequence[Op]) -> list[Any]:
        if self._is_on_its_loop():
            try:
                return await self._answer(self._store.abatch(ops))
            except NotImplementedError:
                pass  # a store with blocking methods only
        return await asyncio.to_thread(self._store.batch, ops)

    async def _answer(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await an operation as `await_uninterrupted` does, but wait once for all operations of a stopped run."""
        task = asyncio.ensure_future(operation)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            spent_s = math.inf if self.is_silent else self._stopped_for_s()
            await end_or_abandon(task, "An operation of the Store", cancels=False, spent_s=spent_s)
            raise
        finally:
            self.is_silent = not task.done()
