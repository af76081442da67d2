"""Turns notes of feedback into events: a person's thumb and note on an answer, which no model receives.

Parts of feedback in other files:

- `session/feedback.py`: finds the rated answer, stores the note, and reads notes that no run has processed
- `core/runs/notes.py`: `listen`, by which the next step of a run processes the note
- `core/state/schema.py`: the key `feedback` of the loop, which counts the ratings
- `core/state/events.py`: `FeedbackEvent`
- `storage/checkpoints/note_rows.py`: reads notes without a Store
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

from graph_agent.base.inbox import ControlMessage
from graph_agent.core.state.events import Rating, StoredEvent

if TYPE_CHECKING:
    from graph_agent.core.state.schema import LoopState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def feedback_event(note: ControlMessage) -> StoredEvent | None:
    """Return the `feedback` event of a note, with the time of its sending; None if its content is of another form.

    The same note gives the same event, so that a reader recognizes an event that it has seen as a note.
    """
    fields = note.content
    # Any client of the Store can put a note there.
    if not isinstance(fields, dict) or fields.get("rating") not in get_args(Rating):
        return None
    if not isinstance(fields.get("answer"), int) or not isinstance(fields.get("by"), str):
        return None
    sent = (_EPOCH + timedelta(microseconds=note.sent_ns // 1000)).isoformat(timespec="microseconds")
    return {"type": "feedback", "ts": sent, "step": 0, "id": note.key, **fields}


def take_feedback(loop: LoopState, note: ControlMessage) -> list[StoredEvent]:
    """Return the event of a note of feedback, in a list, and count it in `loop`; an empty list for an invalid note."""
    entry = feedback_event(note)
    if entry is None:
        return []
    loop["feedback"] = count_ratings(loop.get("feedback", (0, 0)), [entry])
    return [entry]


def pending_feedback(notes: Iterable[ControlMessage], loop: Mapping[str, Any] | None) -> list[StoredEvent]:
    """Return the events of the notes of feedback that no run has processed, in the order of sending.

    Args:
        notes: The notes of a session.
        loop: The loop state of the session's newest checkpoint, which has the keys of processed notes; None if there is
            none.
    """
    taken = set((loop or {}).get("consumed_notes", ()))
    events = (feedback_event(note) for note in notes if note.kind == "feedback" and note.key not in taken)
    return [entry for entry in events if entry is not None]


def count_ratings(counts: Iterable[int], entries: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of thumbs up and down, of which each person has one an answer, after further events."""
    up_and_down = dict(zip(get_args(Rating), counts, strict=True))
    for entry in entries:
        up_and_down[entry["rating"]] += 1
        if "replaces" in entry:
            up_and_down[entry["replaces"]] -= 1
    return list(up_and_down.values())
