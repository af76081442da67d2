"""Turns notes of feedback, of a new title, of a revoked approval and of a fork into events, which no model receives.

Feedback is a thumb and a note on an answer.

Parts of feedback in other files:

- `session/feedback.py`: finds the rated answer, and stores the notes
- `core/state/notes.py`: `listen`, by which the next step of a run processes the note
- `core/state/schema.py`: the key `ratings` of the loop, from which lists count thumbs
- `base/history/events.py`: `FeedbackEvent`, `RenameEvent`, `RevocationEvent`, `ForkEvent`
- `storage/checkpoints/note_rows.py`: reads notes without a Store
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from graph_agent.base.history.events import Rating, StoredEvent
from graph_agent.base.history.plan_parts import LeftOutCall
from graph_agent.base.inbox import ControlMessage

if TYPE_CHECKING:
    from graph_agent.core.state.schema import LoopState, Ratings

NOTE_EVENTS: tuple[Literal["feedback", "rename", "revocation", "fork"], ...] = (
    "feedback",
    "rename",
    "revocation",
    "fork",
)
"""Kinds of notes (messages to a session from outside its run) that become events of the same type, also without a
run."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TITLE_CHARS = 200
"""Maximum characters of a title that a person gives."""


def noted_event(note: ControlMessage) -> StoredEvent | None:
    """Return the event of a note of a kind in `NOTE_EVENTS`; None if the note's content is invalid, because any client
    can store a note.

    The event has the time of sending, `step` 0, the note's key as `id`, and the fields of its content. The same note
    always gives the same event, so that readers can recognize it.
    """
    fields = note.content
    # Any client of the Store can put a note there.
    if not isinstance(fields, dict) or not isinstance(fields.get("by"), str):
        return None
    if note.kind == "rename":
        fits = isinstance(title := fields.get("title"), str) and len(title) <= TITLE_CHARS
    elif note.kind == "revocation":
        fits = isinstance(fields.get("name"), str) and isinstance(fields.get("delegate", ""), str)
    elif note.kind == "fork":
        fits = isinstance(fields.get("origin"), str) and _are_left_out(fields.get("calls"))
    else:
        fits = fields.get("rating") in get_args(Rating) and isinstance(fields.get("answer"), int)
    if not fits:
        return None
    sent = (_EPOCH + timedelta(microseconds=note.sent_ns // 1000)).isoformat(timespec="microseconds")
    return {"type": note.kind, "ts": sent, "step": 0, "id": note.key, **fields}


def _are_left_out(calls: Any) -> bool:
    """Whether the value is a list of calls as a `fork` event has them."""
    names = LeftOutCall.__annotations__
    return isinstance(calls, list) and all(isinstance(call, dict) and call.keys() >= names.keys() for call in calls)


def take_noted(loop: LoopState, note: ControlMessage) -> list[StoredEvent]:
    """Return a list with the event of a note, and record the note in `loop`; an invalid note gives an empty list and no
    change.

    A `feedback` sets the person's newest rating, a `rename` the title, a `fork` `forked_from`; a `revocation` sets
    nothing.
    """
    entry = noted_event(note)
    if entry is None:
        return []
    if entry["type"] == "rename":
        loop["title"] = entry["title"]
    elif entry["type"] == "fork":
        loop["forked_from"] = entry["origin"]
    elif entry["type"] == "feedback":
        loop["ratings"] = with_ratings(loop.get("ratings", {}), [entry])
    return [entry]


def pending_feedback(notes: Iterable[ControlMessage], loop: Mapping[str, Any] | None) -> list[StoredEvent]:
    """Return the events of feedback, titles and revocations that no run has processed yet, in the order of sending.

    Args:
        notes: The notes in a session's inbox.
        loop: The loop state of the session's newest checkpoint, which has the keys of processed notes; None if there is
            no checkpoint.
    """
    taken = set((loop or {}).get("consumed_notes", ()))
    events = (noted_event(note) for note in notes if note.kind in NOTE_EVENTS and note.key not in taken)
    return [entry for entry in events if entry is not None]


def newest_feedback(events: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Mapping[str, Any]]]:
    """Return the newest `feedback` event of each person on each answer: index of the answer's event (`seq`) → name of
    the person → event.

    Args:
        events: Events, oldest first; those of other types are skipped.
    """
    newest: dict[int, dict[str, Mapping[str, Any]]] = {}
    for entry in events:
        if entry["type"] == "feedback":
            newest.setdefault(entry["answer"], {})[entry["by"]] = entry
    return newest


def with_ratings(ratings: Ratings, events: Iterable[Mapping[str, Any]]) -> Ratings:
    """Return a session's ratings (index of an answer → person → rating), updated by further `feedback` events."""
    after = {**ratings}
    for answer, given in newest_feedback(events).items():
        after[str(answer)] = {**ratings.get(str(answer), {}), **{by: entry["rating"] for by, entry in given.items()}}
    return after
