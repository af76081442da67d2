"""Stores notes (steering, follow-ups, aborts, feedback, new settings) for a session until a run processes them.

Each note is processed once, in the order of sending, also across a crash: the state holds the keys of processed notes,
which are removed from the inbox only after a later run has read that state back, which proves that it was stored.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from graph_agent.base._internal.sync_bridge import end_or_abandon, in_blocking_run

if TYPE_CHECKING:
    # LangGraph's Store takes long to import, and commands that only send a note do not need it.
    from langgraph.store.base import BaseStore, Op

T = TypeVar("T")
NoteKind = Literal["steer", "follow_up", "abort", "configure", "feedback", "rename", "revocation", "fork"]

_PAGE = 100
"""Maximum notes that one search of the Store returns."""


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """One note: a message to a session from outside its run."""

    key: str
    """Sort key and identity, `<20-digit time in ns>-<8 hex digits>`; a session processes no key twice."""
    kind: NoteKind
    """`steer` adds a user message to the running input, `follow_up` begins the next input with one, `abort` ends the
    run, `configure` changes settings of the session, `feedback` is a person's rating of an answer,
    `rename` gives the session a title, `revocation` takes back an approval of all calls of a kind, `fork` names the
    session that was copied, and what the copy leaves out."""
    content: Any = ""
    """The user's text or content blocks for `steer` and `follow_up`; a mapping of configuration field → value for
    `configure`; the fields of the event for `feedback`, `rename`, `revocation` and `fork`; unused for `abort`."""

    @property
    def sent_ns(self) -> int:
        """Time of sending in nanoseconds of the sender's wall clock, from `key`.

        `ValueError` for a key without a time.
        """
        return int(self.key.partition("-")[0])

    def as_value(self) -> dict[str, Any]:
        """Return the note without its key as a value for a Store: `{"kind": …, "content": …}`."""
        return {"kind": self.kind, "content": self.content}


class Inbox(Protocol):
    """Storage of notes (steering, aborts and so on) for sessions; a note stays until it is removed with `forget`."""

    is_silent: bool
    """Whether the newest operation did not end after the run was stopped; it was then left running."""

    async def add(self, session_id: str, note: ControlMessage) -> None:
        """Store a note for a session; a note with the same key is replaced."""

    async def read(self, session_id: str) -> list[ControlMessage]:
        """Return all notes of a session, those sent first at the front; empty if there are none.

        Notes are not removed.
        """
        ...

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """Remove notes by their keys; unknown keys are ignored."""


class MemoryInbox:
    """An `Inbox` in the memory of this process, lost at its end. Thread-safe."""

    is_silent = False

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, ControlMessage]] = {}
        self._guard = threading.Lock()

    async def add(self, session_id: str, note: ControlMessage) -> None:
        """Store a note for a session; a note with the same key is replaced."""
        with self._guard:
            self._notes.setdefault(session_id, {})[note.key] = note

    async def read(self, session_id: str) -> list[ControlMessage]:
        """Return all notes of a session, those sent first at the front; empty if there are none.

        Notes are not removed.
        """
        notes = self._notes.get(session_id)
        # A copy, because another thread may add a note meanwhile.
        return sorted(notes.copy().values(), key=lambda note: note.key) if notes else []

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """Remove notes by their keys; unknown keys are ignored."""
        with self._guard:
            remaining = {key: note for key, note in self._notes.pop(session_id, {}).items() if key not in keys}
            if remaining:
                self._notes[session_id] = remaining


class InboxWithSavedNotes:
    """The inbox in memory of a session that also has notes in its database, which were stored there for a later run.

    Args:
        memory: The inbox in memory, which receives new notes.
        saved: The notes in the database.
        forget_saved: Removes notes from the database; receives the session's id and the keys.
    """

    is_silent = False

    def __init__(
        self,
        memory: Inbox,
        saved: Sequence[ControlMessage],
        forget_saved: Callable[[str, Collection[str]], Awaitable[None]],
    ) -> None:
        self._memory = memory
        self._saved = {note.key: note for note in saved}
        self._forget_saved = forget_saved

    async def add(self, session_id: str, note: ControlMessage) -> None:
        """Store a note in memory; a note with the same key is replaced."""
        await self._memory.add(session_id, note)

    async def read(self, session_id: str) -> list[ControlMessage]:
        """Return all notes of the session from memory and database, those sent first at the front.

        Notes are not removed.
        """
        notes = {**self._saved, **{note.key: note for note in await self._memory.read(session_id)}}
        return [note for _, note in sorted(notes.items())]

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """Remove notes by their keys from memory and database; unknown keys are ignored."""
        await self._memory.forget(session_id, keys)
        if own := self._saved.keys() & keys:
            await self._forget_saved(session_id, own)
            self._saved = {key: note for key, note in self._saved.items() if key not in own}


def new_note(kind: NoteKind, content: Any = "") -> ControlMessage:
    """Create a note with the current time as its key, which sorts after every key that this process has made before.

    Args:
        kind: What the note does.
        content: See `ControlMessage.content`; empty for an abort.
    """
    return ControlMessage(f"{_clock.next_ns():020d}-{uuid.uuid4().hex[:8]}", kind, content)


def note_from(key: str, value: Mapping[str, Any]) -> ControlMessage | None:
    """Return a note read from a Store; None if the kind is unknown or the key does not begin with a time.

    Args:
        key: The Store item's key, which becomes the key of the note.
        value: The Store item's value, `{"kind": …, "content": …}`; a missing content is empty text.
    """
    if value.get("kind") not in get_args(NoteKind) or not key.partition("-")[0].isdecimal():
        return None
    return ControlMessage(key, value["kind"], value.get("content", ""))


class _Clock:
    """The wall clock, strictly increasing within a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next_ns(self) -> int:
        """Return the wall clock in nanoseconds, or one more than the last value if the clock has not advanced."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last


_clock = _Clock()


def inbox_namespace(session_id: str) -> tuple[str, ...]:
    """Return the Store namespace of one session's notes, `("graph_agent", "inbox", <session id>)` with periods escaped.

    Any client of the Store may put a note there: the key is `<20-digit time in ns>-<anything unique>`, the value
    `{"kind": "steer" | "follow_up" | "abort" | "configure", "content": …}`; `Session.feedback` puts `feedback` there.
    """
    return _namespace("inbox", session_id)


def _namespace(kind: str, session_id: str) -> tuple[str, ...]:
    """Return the Store namespace of one session's notes of a kind; periods and `%` in the id are escaped."""
    # A namespace label may not contain a period.
    return ("graph_agent", kind, session_id.replace("%", "%25").replace(".", "%2E"))


class StoreInbox:
    """An `Inbox` in a LangGraph Store.

    A Store with only blocking methods, or of another loop, is called in a thread. Errors of the Store are raised to the
    caller.

    Args:
        store: The Store.
        kind: Second label of the namespace; inboxes of different kinds do not share notes.
        stopped_for_s: Returns the seconds since the session's run was stopped, to bound the wait for a slow Store.
    """

    def __init__(
        self, store: BaseStore, kind: str = "inbox", *, stopped_for_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._store = store
        self._kind = kind
        self._stopped_for_s = stopped_for_s
        self.is_silent = False

    async def add(self, session_id: str, note: ControlMessage) -> None:
        """Put a note into the Store, without indexing it for vector search; one with the same key is replaced."""
        from langgraph.store.base import PutOp

        await self._do([PutOp(_namespace(self._kind, session_id), note.key, note.as_value(), index=False)])

    async def read(self, session_id: str) -> list[ControlMessage]:
        """Return all valid notes of a session, those sent first at the front; empty if there are none.

        Items that are no valid note are skipped; no item is removed.
        """
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
        """Remove notes by their keys in one batch; unknown keys are ignored."""
        from langgraph.store.base import PutOp

        namespace = _namespace(self._kind, session_id)
        await self._do([PutOp(namespace, key, None) for key in keys])

    async def _is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether the Store reports a namespace as empty; False if it cannot do so more cheaply than by a search."""
        peek = getattr(self._store, "is_empty", None)
        return peek is not None and self._is_on_its_loop() and bool(await self._answer(peek(namespace)))

    def _is_on_its_loop(self) -> bool:
        """Whether the Store can be awaited here: not in a blocking run, and on the Store's own loop if it has one."""
        # The locks and futures of a store with a loop of its own work on that loop only.
        loop = getattr(self._store, "loop", None)
        return not in_blocking_run.get() and loop in (None, asyncio.get_running_loop())

    async def _do(self, ops: Sequence[Op]) -> list[Any]:
        """Run operations of the Store as one batch and return their results, in the order of `ops`.

        On the Store's own event loop they are awaited; otherwise, or if it has only blocking methods, they run in a
        thread.
        """
        if self._is_on_its_loop():
            try:
                return await self._answer(self._store.abatch(ops))
            except NotImplementedError:
                pass  # a store with blocking methods only
        return await asyncio.to_thread(self._store.batch, ops)

    async def _answer(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await an operation of the Store without passing a cancellation on to it, and return its result.

        On a cancellation, wait for the operation for a bounded time, then leave it running and raise the cancellation.
        All operations of one stopped run share that time; once it is used up, further operations are not waited for.
        Sets `is_silent`: whether the operation is still running at the end.
        """
        task = asyncio.ensure_future(operation)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            spent_s = math.inf if self.is_silent else self._stopped_for_s()
            await end_or_abandon(task, "An operation of the Store", cancels=False, spent_s=spent_s)
            raise
        finally:
            self.is_silent = not task.done()
