"""Taking in what is said to a session at work: each note once, in order, also across a crash.

The state holds the keys it has taken in; the inbox forgets them only when a later run has read that state back, which
proves that it was stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage

from graph_agent.config import LoopConfig
from graph_agent.context import AgentContext, set_fields
from graph_agent.errors import ConfigError
from graph_agent.events.types import StoredEvent, event
from graph_agent.runs.inbox import Note, NoteKind
from graph_agent.runs.run import Run
from graph_agent.state.messages import STEERING_MARK

if TYPE_CHECKING:
    from graph_agent.state.schema import Bookkeeping

_NOTE = "note-"
"""How the ids of messages begin that were notes."""


@dataclass(slots=True)
class Heard:
    """What was taken in."""

    messages: list[HumanMessage] = field(default_factory=list)
    """The user's words, as the history keeps them."""
    events: list[StoredEvent] = field(default_factory=list)


async def listen(
    run: Run,
    loop: Bookkeeping,
    kinds: Collection[NoteKind],
    step: int,
    check: Callable[[Bookkeeping], Awaitable[None]] | None = None,
) -> Heard:
    """Take in the notes of some kinds that are new; obey an abort whatever is asked for.

    Args:
        run: The run.
        loop: The state's bookkeeping, which is updated: what was taken in, and what it changed.
        kinds: Which notes to take in; the others stay.
        step: The step it happens in.
        check: Raises `ConfigError` for a configuration that cannot be had; that change is left out, with a warning.
    """
    heard = Heard()
    notes = await _new_notes(run, loop)
    for note in notes:
        if note.kind not in kinds:
            continue
        if note.kind == "configure":
            heard.events += await _reconfigure(loop, note, step, check)
        else:
            heard.messages.append(message_of(note))
            heard.events.append(event("steering", step, content=_content(note)))
        loop["taken"] = [*loop.get("taken", []), note.key]
    return heard


async def take_follow_ups(run: Run, loop: Bookkeeping, messages: Iterable[HumanMessage]) -> None:
    """Record the follow-ups among new input as taken in.

    Args:
        run: The run.
        loop: The state's bookkeeping, which is updated.
        messages: The user's new messages.
    """
    keys = [message.id.removeprefix(_NOTE) for message in messages if message.id and message.id.startswith(_NOTE)]
    if keys:
        # Read the inbox first: it forgets the keys that an earlier run has stored, and these are not stored yet.
        await listen(run, loop, (), 0)
        loop["taken"] = [*loop.get("taken", []), *keys]


async def _new_notes(run: Run, loop: Bookkeeping) -> list[Note]:
    notes = await run.inbox.read(run.session_id)
    gone = run.obey(notes)
    taken = set(loop.get("taken", ()))
    if taken and not run.has_listened:
        gone += [note.key for note in notes if note.key in taken]
        loop.pop("taken", None)
    run.has_listened = True
    if gone:
        await run.inbox.forget(run.session_id, gone)
    return [note for note in notes if note.key not in taken and note.kind != "abort"]


def message_of(note: Note) -> HumanMessage:
    """The user's words in a note; its id is the same wherever the note is read."""
    marks = {STEERING_MARK: True} if note.kind == "steer" else {}
    return HumanMessage(_content(note), id=_NOTE + note.key, additional_kwargs=marks)


def _content(note: Note) -> Any:
    # Blocks where it holds more than text, such as an image.
    return note.content if isinstance(note.content, list) else str(note.content)


async def _reconfigure(
    loop: Bookkeeping, note: Note, step: int, check: Callable[[Bookkeeping], Awaitable[None]] | None
) -> list[StoredEvent]:
    try:
        changed = {**loop.get("changed", {}), **checked_fields(note.content)}
        if check is not None:
            await check({**loop, "changed": changed})
    except ConfigError as error:
        return [event("warning", step, message=f"A change of the configuration was left out: {error}")]
    loop["changed"] = changed
    return []


def checked_fields(fields: Any) -> dict[str, Any]:
    """The fields of the configuration that may be changed while a session goes on, as plain JSON.

    Raises:
        ConfigError: On a field that there is not, a value that does not fit, or credentials, which are never stored.
    """
    if not isinstance(fields, dict):
        raise ConfigError(f"A change of the configuration is a mapping of field → value, not {fields!r}.")
    if "credentials" in fields:
        raise ConfigError("credentials belong to one run's context; what is stored with a session may not hold them.")
    try:
        context = AgentContext(**fields)
    except ConfigError as error:
        raise ConfigError(str(error).replace("context (AgentContext): ", "configure: ")) from None
    LoopConfig().with_values(set_fields(context))
    return context.model_dump(mode="json", exclude_unset=True, exclude_none=True)
