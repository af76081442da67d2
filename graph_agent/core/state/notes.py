"""Processes the notes of an inbox: steering and follow-ups become messages, changes of the configuration apply.

A note is a message to a session from outside its run; see `base.inbox`. Steering adds a user message to a running
input, a follow-up begins the next input.

Parts of steering in other files:

- `base/inbox.py`: `Inbox`, which stores notes until a run processes them
- `nodes/plan.py`: the rule `receive_notes`; `ask_model` plans again if a note arrives before the answer is shown
- `core/state/schema.py`: the keys `consumed_notes` and `config_overrides` of the loop
- `base/history/events.py`: `SteeringEvent`
- `session/control.py`: `steer`, by which a program sends a note
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, HumanMessage

from graph_agent.base.errors import ConfigError
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.inbox import ControlMessage, Inbox, MemoryInbox, NoteKind
from graph_agent.base.input_messages import STEERING_MARK
from graph_agent.base.settings.config import AgentContext, LoopConfig, set_fields
from graph_agent.core.state.feedback import NOTE_EVENTS as NOTE_EVENTS  # the rules of a plan receive these kinds
from graph_agent.core.state.feedback import take_noted
from graph_agent.core.state.run import Run, WorkStoppedError

if TYPE_CHECKING:
    from graph_agent.core.state.schema import LoopState

_NOTE = "note-"
"""Prefix of the ids of messages made from notes."""


@dataclass(slots=True)
class ReceivedNotes:
    """The messages and events that processed notes led to; both lists are in the order of the notes."""

    messages: list[HumanMessage] = field(default_factory=list)
    """User messages to append to the history, one for each steering or follow-up note."""
    events: list[StoredEvent] = field(default_factory=list)
    """`steering`, `feedback`, `rename`, `revocation` and `fork` events, and a `warning` for each change of the
    configuration that was left out."""


async def listen(
    run: Run,
    loop: LoopState,
    kinds: Collection[NoteKind],
    step: int,
    check: Callable[[LoopState], Coroutine[Any, Any, None]] | None = None,
) -> ReceivedNotes:
    """Process the session's new notes of some kinds, and record them as processed in `loop`, which is changed in place.

    Aborts are always processed: they abort the run. Notes of other kinds stay in the inbox. If the run is stopped while
    the Store or `check` is awaited, the remaining notes stay, too. An invalid note leads to nothing, but for a change
    of the configuration, which adds a `warning` event.

    Args:
        run: The run, whose inbox is read; without an inbox there are no notes.
        loop: The loop state; `consumed_notes`, `config_overrides` and what feedback sets may change.
        kinds: Kinds of notes to process; empty for aborts only.
        step: Number of the plan for the events; 0 before the first plan.
        check: Raises `ConfigError` for a configuration that cannot be used; the change is then left out, and a
            `warning` event reports it. None to check field names and values only.

    Returns:
        User messages for the history, which the caller appends, and events.

    Raises:
        Exception: The Store raised it, or `check` raised another exception than `ConfigError`.
    """
    received = ReceivedNotes()
    for note in await _new_notes(run, loop):
        if note.kind not in kinds:
            continue
        if note.kind in NOTE_EVENTS:
            received.events += take_noted(loop, note)
        elif note.kind == "configure":
            try:
                received.events += await _reconfigure(run, loop, note, step, check)
            except WorkStoppedError:
                break
        else:
            received.messages.append(note_message(note))
            received.events.append(event("steering", step, content=_content(note), queued_s=_age_s(note.sent_ns)))
        loop["consumed_notes"] = [*loop.get("consumed_notes", []), note.key]
    return received


async def take_follow_ups(run: Run, loop: LoopState, messages: Iterable[HumanMessage]) -> None:
    """Record in `loop` that the follow-up notes among a new input's messages are processed; skip other messages.

    If there are any, the inbox is read first, which also processes aborts; errors of the Store are raised.
    """
    keys = [message.id.removeprefix(_NOTE) for message in messages if message.id and message.id.startswith(_NOTE)]
    if keys:
        # Read the inbox first: this drops the keys that an earlier run has stored, and these are not stored yet.
        await listen(run, loop, (), 0)
        loop["consumed_notes"] = [*loop.get("consumed_notes", []), *keys]


def seconds_since_sent(message: BaseMessage) -> float | None:
    """Return the wall-clock seconds, at least 0.0, since the note behind a message was sent; None for other ones."""
    if not message.id or not message.id.startswith(_NOTE):
        return None
    return _age_s(ControlMessage(message.id.removeprefix(_NOTE), "follow_up").sent_ns)


def _age_s(sent_ns: int) -> float:
    """Return the wall-clock seconds since a time in nanoseconds; 0.0 for a time in the future."""
    # The sender's clock may be ahead of this one.
    return max(0.0, round((time.time_ns() - sent_ns) / 1e9, 6))


async def _new_notes(run: Run, loop: LoopState) -> list[ControlMessage]:
    """Return the notes (messages to the session from outside) that no run has processed; empty without an inbox, or if
    the run is stopped while it waits. A read of a Store stops with the run.
    """
    if run.inbox is None:
        return []
    # Reading from memory cannot block, so it needs no task that an abort could end.
    if isinstance(run.inbox, MemoryInbox):
        return await _read_notes(run, run.inbox, loop)
    try:
        return await run.stop.stoppable(_read_notes(run, run.inbox, loop), "The Store")
    except WorkStoppedError:
        return []


async def _read_notes(run: Run, inbox: Inbox, loop: LoopState) -> list[ControlMessage]:
    """Read the inbox, process its aborts, and return the notes of other kinds that no run has processed.

    Aborts stop the run and are removed from the inbox. The first reading of a run also removes the notes that the
    stored state has processed, and clears `consumed_notes` of `loop`. Errors of the Store are raised.
    """
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


def note_message(note: ControlMessage) -> HumanMessage:
    """Return a note as a user message whose id is `note-` and the note's key; one of steering is marked as such."""
    marks = {STEERING_MARK: True} if note.kind == "steer" else {}
    return HumanMessage(_content(note), id=_NOTE + note.key, additional_kwargs=marks)


def _content(note: ControlMessage) -> Any:
    """Return the content of a note in the form of a message's content: a list of content blocks unchanged, else a
    text."""
    # Content blocks if it holds more than text, such as an image.
    return note.content if isinstance(note.content, list) else str(note.content)


async def _reconfigure(
    run: Run,
    loop: LoopState,
    note: ControlMessage,
    step: int,
    check: Callable[[LoopState], Coroutine[Any, Any, None]] | None,
) -> list[StoredEvent]:
    """Apply a `configure` note to `config_overrides` of `loop`, in place; fields of earlier notes stay.

    Args:
        run: The run, whose stop ends the check.
        loop: The loop state.
        note: The note.
        step: Number of the plan, for the event.
        check: Checks the changed state, e.g. by building the model; None to check only the fields.

    Returns:
        A `warning` event if the change is invalid and was left out; else no event.

    Raises:
        WorkStoppedError: The run was stopped during `check`.
        Exception: `check` raised another exception than `ConfigError`.
    """
    try:
        changed = {**loop.get("config_overrides", {}), **checked_fields(note.content)}
        if check is not None:
            await run.stop.stoppable(check({**loop, "config_overrides": changed}), "Building the model")
    except ConfigError as error:
        return [event("warning", step, message=f"A change of the configuration was left out: {error}")]
    loop["config_overrides"] = changed
    return []


def checked_fields(fields: Any) -> dict[str, Any]:
    """Return changes of a session's configuration as plain JSON, without fields that are None or not set.

    Args:
        fields: Mapping of a field of `AgentContext` → its value.

    Raises:
        ConfigError: It is no mapping, has an unknown field or an invalid value, or has `credentials` or `caller`.
    """
    if not isinstance(fields, dict):
        raise ConfigError(f"A change of the configuration is a mapping of field → value, not {fields!r}.")
    # The session would store them in its checkpoints.
    if "credentials" in fields:
        raise ConfigError("credentials belong to one run's context; a session may not store them.")
    # A note may come from a model's tool or another process.
    if "caller" in fields:
        raise ConfigError("caller belongs to one run's context; a session may not store it.")
    try:
        context = AgentContext(**fields)
    except ConfigError as error:
        raise ConfigError(str(error).replace("context (AgentContext): ", "configure: ")) from None
    LoopConfig().with_values(set_fields(context))
    return context.model_dump(mode="json", exclude_unset=True, exclude_none=True)
