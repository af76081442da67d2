"""What is said to a session while it is at work, or before its next input: an ordered box of notes."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

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
