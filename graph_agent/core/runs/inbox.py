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
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from langchain_core.messages import BaseMessage, HumanMessage

from graph_agent.base._internal.sync_bridge import end_or_abandon, in_blocking_run
from graph_agent.base.errors import ConfigError
from graph_agent.base.input_messages import STEERING_MARK
from graph_agent.base.settings.config import AgentContext, LoopConfig, set_fields
from graph_agent.core.runs.run import Run, WorkStoppedError
from graph_agent.core.state.events import StoredEvent, event

if TYPE_CHECKING:
    # LangGraph's Store takes long to import, and commands that only send a note do not need it.
    from langgraph.store.base import BaseStore, Op

    from graph_agent.core.state.schema import LoopState

T = TypeVar("T")
NoteKind = Literal["steer", "follow_up", "abort", "configure"]

_NOTE = "note-"
"""Prefix of the ids of messages made from notes."""
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


@dataclass(slots=True)
class ReceivedNotes:
    """Messages and events of the notes that were processed."""

    messages: list[HumanMessage] = field(default_factory=list)
    """The user's messages, as stored in the history."""
    events: list[StoredEvent] = field(default_factory=list)


async def listen(
    run: Run,
    loop: LoopState,
    kinds: Collection[NoteKind],
    step: int,
    check: Callable[[LoopState], Coroutine[Any, Any, None]] | None = None,
) -> ReceivedNotes:
    """Process the new notes of some kinds, which change the loop state; aborts are always processed.

    Other notes stay in the inbox. `check` raises `ConfigError` for an impossible configuration; the change is then left
    out, with a warning.
    """
    received = ReceivedNotes()
    for note in await _new_notes(run, loop):
        if note.kind not in kinds:
            continue
        if note.kind == "configure":
            try:
                received.events += await _reconfigure(run, loop, note, step, check)
            except WorkStoppedError:
                break
        else:
            received.messages.append(message_of(note))
            received.events.append(event("steering", step, content=_content(note), queued_s=_age_s(note.sent_ns)))
        loop["consumed_notes"] = [*loop.get("consumed_notes", []), note.key]
    return received


async def take_follow_ups(run: Run, loop: LoopState, messages: Iterable[HumanMessage]) -> None:
    """Record in the loop state the follow-ups among new input as processed."""
    keys = [message.id.removeprefix(_NOTE) for message in messages if message.id and message.id.startswith(_NOTE)]
    if keys:
        # Read the inbox first: this drops the keys that an earlier run has stored, and these are not stored yet.
        await listen(run, loop, (), 0)
        loop["consumed_notes"] = [*loop.get("consumed_notes", []), *keys]


def seconds_since_sent(message: BaseMessage) -> float | None:
    """Return the seconds since the sending of the note that a message was made from, of the wall clock; else None."""
    if not message.id or not message.id.startswith(_NOTE):
        return None
    return _age_s(ControlMessage(message.id.removeprefix(_NOTE), "follow_up").sent_ns)


def _age_s(sent_ns: int) -> float:
    # The sender's clock may be ahead of this one.
    return max(0.0, round((time.time_ns() - sent_ns) / 1e9, 6))


async def _new_notes(run: Run, loop: LoopState) -> list[ControlMessage]:
    """Return the notes that no run has processed; none if the run is stopped before the Store answers."""
    if run.inbox is None:
        return []
    if isinstance(run.inbox, MemoryInbox):
        return await _read_notes(run, run.inbox, loop)
    try:
        return await run.stop.stoppable(_read_notes(run, run.inbox, loop), "The Store")
    except WorkStoppedError:
        return []


async def _read_notes(run: Run, inbox: Inbox, loop: LoopState) -> list[ControlMessage]:
    notes = await inbox.read(run.identity.session_id)
    obsolete = run.stop.process_aborts(notes)
    taken = set(loop.get("consumed_notes", ()))
    if taken and not run.has_read_inbox:
        obsolete += [note.key for note in notes if note.key in taken]
        loop.pop("consumed_notes", None)
    run.has_read_inbox = True
    if obsolete:
        await inbox.forget(run.identity.session_id, obsolete)
    return [note for note in notes if note.key not in taken and note.kind != "abort"]


def message_of(note: ControlMessage) -> HumanMessage:
    """Return a note as a user message, with an id derived from the note's key."""
    marks = {STEERING_MARK: True} if note.kind == "steer" else {}
    return HumanMessage(_content(note), id=_NOTE + note.key, additional_kwargs=marks)


def _content(note: ControlMessage) -> Any:
    # Content blocks if it holds more than text, such as an image.
    return note.content if isinstance(note.content, list) else str(note.content)


async def _reconfigure(
    run: Run,
    loop: LoopState,
    note: ControlMessage,
    step: int,
    check: Callable[[LoopState], Coroutine[Any, Any, None]] | None,
) -> list[StoredEvent]:
    try:
        changed = {**loop.get("config_overrides", {}), **checked_fields(note.content)}
        if check is not None:
            await run.stop.stoppable(check({**loop, "config_overrides": changed}), "Building the model")
    except ConfigError as error:
        return [event("warning", step, message=f"A change of the configuration was left out: {error}")]
    loop["config_overrides"] = changed
    return []


def checked_fields(fields: Any) -> dict[str, Any]:
    """Return changes of a session's configuration as plain JSON; `ConfigError` for bad ones, and for credentials."""
    if not isinstance(fields, dict):
        raise ConfigError(f"A change of the configuration is a mapping of field → value, not {fields!r}.")
    if "credentials" in fields:
        raise ConfigError("credentials belong to one run's context; a session may not store them.")
    try:
        context = AgentContext(**fields)
    except ConfigError as error:
        raise ConfigError(str(error).replace("context (AgentContext): ", "configure: ")) from None
    LoopConfig().with_values(set_fields(context))
    return context.model_dump(mode="json", exclude_unset=True, exclude_none=True)
