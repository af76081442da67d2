"""Stores a person's feedback on an answer, and a session's title, without a run: as notes for the session's next step.

An answer is named by the `seq` of its `agent_response` event, the id of its input, the id of its message, or the id
with which an API has returned it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from langchain_core.messages import AIMessage

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.text import clean, to_json_safe
from graph_agent.base.approvals.decisions import DEFAULT_DECIDER
from graph_agent.base.errors import ConfigError, InputError
from graph_agent.base.history.events import Rating, StoredEvent
from graph_agent.base.inbox import StoreInbox, new_note
from graph_agent.base.input_ids import ANSWERS
from graph_agent.core.state.feedback import TITLE_CHARS, noted_event
from graph_agent.core.state.registry import find_run, inbox_of
from graph_agent.session.activity import deliver_note, sees_other_processes
from graph_agent.session.deduplicator import find_checkpoint, pruned_state
from graph_agent.session.importing import read_history
from graph_agent.session.results import since_last_input

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.store.base import BaseStore

    from graph_agent.base.inbox import ControlMessage

_RETURNED = re.compile(r"(?:chatcmpl-|msg_|resp_)([0-9a-f]{32}|[0-9a-f]{24})(?:-[0-9a-f]{8}|[0-9a-f]{4,})?")
"""Ids of answers in the HTTP APIs; the first group is the id of the message that began the input."""
NOTE_CHARS = 4000
"""Maximum characters of the note of a rating."""


async def give_feedback(
    saver: BaseCheckpointSaver[Any],
    store: BaseStore | None,
    session_id: str,
    rating: Rating,
    *,
    note: str = "",
    answer: str | int | None = None,
    by: str | None = None,
    evaluate: bool = False,
    agent: str = "agent",
) -> StoredEvent:
    """Store feedback on an answer of a session, also while a run is in progress; return the event about it, which waits
    in the session's inbox. It is also reported to telemetry.

    Args:
        saver: The checkpointer of the session.
        store: The Store of the agent; None for the one in the checkpointer's database or, without one, this process's
            memory.
        session_id: Id of the session.
        rating: `up` or `down`.
        note: What the user wrote, at most 4,000 characters, stored without white space around it; blank for nothing.
        answer: `seq` of the answer's event; id of its input or of its message; or the id with which an API returned it.
            None for the newest answer.
        by: Name of the user; None for `user`.
        evaluate: Whether the answer is to become a case of an evaluation.
        agent: Name of the agent, for OpenTelemetry.

    Raises:
        InputError: The session has no such answer, the rating is invalid, `by` is no text, or the note is no text or
            too long.
        ConfigError: There is neither a Store nor a database that can hold the feedback.
    """
    if rating not in get_args(Rating):
        raise InputError(f"rating={rating!r}: a rating is 'up' or 'down'.")
    if not isinstance(note, str) or len(note) > NOTE_CHARS:
        raise InputError(f"note: the note of a rating is a text of at most {NOTE_CHARS:,} characters.")
    person = person_of(by)
    newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
    history = await read_history(saver, session_id, newest) if newest is not None else {}
    rated = await _find(saver, session_id, newest, history, answer)
    fields: dict[str, Any] = {**rated, "rating": rating, "by": person}
    if note.strip():
        fields["note"] = clean(note.strip())
    if evaluate:
        fields["evaluate"] = True
    made = new_note("feedback", fields)
    await store_note(saver, store, session_id, made)
    entry = noted_event(made)
    assert entry is not None, "the note was made here, in the form of an event"
    # The run that takes the note in does not report it, so that it is reported once, when it is given.
    if telemetry.observer is not None:
        telemetry.observer.feedback(entry, session_id, agent)
    return entry


async def seq_of_answer(saver: BaseCheckpointSaver[Any], session_id: str, answer: str | int | None) -> int:
    """Return the `seq` of an answer's event, by itself, the id of its input or message, or the id that an API returned.

    None stands for the newest answer. Raises `InputError` if the session has no such answer.
    """
    newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
    history = await read_history(saver, session_id, newest) if newest is not None else {}
    return int((await _find(saver, session_id, newest, history, answer))["answer"])


def person_of(by: str | None) -> str:
    """Return the name of a person for an event; `user` for None. Raises `InputError` if it is not a text."""
    if not isinstance(by, str | None):
        raise InputError(f"by={by!r}: the name of a person is a text.")
    return clean(by or DEFAULT_DECIDER)


async def give_title(
    saver: BaseCheckpointSaver[Any], store: BaseStore | None, session_id: str, title: str, by: str | None
) -> StoredEvent:
    """Store a title of a session, also while a run is in progress; return the event about it.

    Each run of white space in the title becomes one blank. `by` is the name of the person, None for `user`.

    Raises:
        InputError: The title is blank, no text, or longer than `TITLE_CHARS` characters; `by` is no text; or there is
            no such session.
        ConfigError: There is neither a Store nor a database that can hold the title.
    """
    if not isinstance(title, str) or not title.strip() or len(title) > TITLE_CHARS:
        raise InputError(f"title={title!r}: a title is a text of 1 to {TITLE_CHARS} characters.")
    if await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}}) is None:
        raise InputError(f"There is no session {session_id!r} to rename; its first input begins it.")
    made = new_note("rename", {"title": clean(" ".join(title.split())), "by": person_of(by)})
    await store_note(saver, store, session_id, made)
    entry = noted_event(made)
    assert entry is not None, "the note was made here, in the form of an event"
    return entry


async def store_note(
    saver: BaseCheckpointSaver[Any], store: BaseStore | None, session_id: str, note: ControlMessage
) -> None:
    """Store a note for a session: in `store` if given, else in the checkpointer's database, else in this process's
    memory.

    In a database, a run of the session in this process receives the note at once.

    Args:
        saver: The checkpointer of the session.
        store: The agent's Store; None if it has none.
        session_id: Id of the session.
        note: The note.

    Raises:
        ConfigError: There is no Store, other processes use the checkpointer's database, and it has no place for notes.
    """
    address: str | None = getattr(saver, "address", None)
    if store is not None:
        await StoreInbox(store).add(session_id, note)
    elif address is not None:
        await deliver_note(address, session_id, note)
        # Without a Store, a run looks for notes in the database only when it begins.
        if (run := await find_run(saver, session_id)) is not None and run.inbox is not None:
            await run.inbox.add(session_id, note)
    elif await sees_other_processes(saver):
        raise ConfigError(
            f"Feedback waits in a Store for the session's next run, and this agent with {type(saver).__name__} has "
            "none; build it with store=..., or with the saver of graph_agent.persistence.open_saver()."
        )
    else:
        await (await inbox_of(saver, None)).add(session_id, note)


async def _find(
    saver: BaseCheckpointSaver[Any],
    session_id: str,
    newest: CheckpointTuple | None,
    history: Mapping[str, Sequence[Any]],
    answer: str | int | None,
) -> dict[str, Any]:
    """Return the fields that identify an answer in a `feedback` event: `answer`, which is its index among the events.

    If the answer was named by an id, the fields also have this id as `message_id` or `input_id`. An id is looked up
    among messages, then as an id that an API returned, then among inputs.

    Args:
        saver: The checkpointer.
        session_id: Id of the session.
        newest: The newest checkpoint; None if the session does not exist.
        history: The messages and events of the session; empty if it does not exist.
        answer: Index of the answer's event, or an id; None for the newest answer.

    Raises:
        InputError: The session has no such answer.
    """
    events: Sequence[StoredEvent] = history.get("events", ())
    answers = [at for at, entry in enumerate(events) if entry["type"] == "agent_response"]
    if answer is None and answers:
        return {"answer": answers[-1]}
    if isinstance(answer, int) and not isinstance(answer, bool) and answer in answers:
        return {"answer": answer}
    # No id has a character that no database can store.
    if isinstance(answer, str) and clean(answer) == answer and newest is not None:
        if (at := _by_message(events, answers, history["messages"], answer)) is not None:
            return {"answer": at, "message_id": answer}
        if (at := _by_returned(events, answers, history["messages"], answer)) is not None:
            return {"answer": at, "message_id": answer}
        if (at := await _by_input(saver, session_id, newest, events, answer)) is not None:
            return {"answer": at, "input_id": answer}
    named = "no answer yet" if answer is None else f"no answer {answer!r}"
    known = f"; its answers are the events {', '.join(map(str, answers[-5:]))}" if answers else ""
    raise InputError(
        f"Session {session_id!r} has {named}{known}. Name an answer by the seq of its agent_response event, the id of "
        "its input, the id of its message, or the id with which an API returned it (chatcmpl-…, resp_…, msg_…)."
    )


def _by_returned(
    events: Sequence[StoredEvent], answers: Sequence[int], messages: Sequence[Any], returned: str
) -> int | None:
    """Return the index in `events` of the answer that an API returned with the id `returned`; None if there is none.

    The id contains that of the user's message; the first answer after this message that is found is returned. None also
    if the history has lost the message.
    """
    found = _RETURNED.fullmatch(returned)
    begin = next((at for at, each in enumerate(messages) if found and each.id == found[1]), None)
    if begin is None:
        return None
    after = (each for each in messages[begin:] if isinstance(each, AIMessage) and not each.tool_calls)
    return next(
        (at for each in after if (at := _by_message(events, answers, messages, each.id or "")) is not None), None
    )


async def answer_at(saver: BaseCheckpointSaver[Any], session_id: str, checkpoint_id: str) -> int | None:
    """Return the index of the newest answer at a checkpoint; None if it has none, or is no longer stored."""
    place: Any = {"thread_id": session_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
    if (found := await saver.aget_tuple({"configurable": place})) is None:
        return None
    events = (await read_history(saver, session_id, found))["events"]
    return next((at for at in range(len(events) - 1, -1, -1) if events[at]["type"] == "agent_response"), None)


def _by_message(
    events: Sequence[StoredEvent], answers: Sequence[int], messages: Sequence[Any], message_id: str
) -> int | None:
    """Return the index in `events` of the answer whose message has an id; None if there is none.

    Messages have no link to events, so answers with the same content are matched by their order. None also if the
    history has lost some of these messages, because the order is then unknown.
    """
    named = [each for each in messages if isinstance(each, AIMessage) and not each.tool_calls]
    contents = {each.id: to_json_safe(each.content) for each in named}
    content = contents.get(message_id)
    equal = [index for index in answers if events[index]["content"] == content]
    same = [id_ for id_, each in contents.items() if each == content]
    return equal[same.index(message_id)] if message_id in contents and len(same) == len(equal) else None


async def _by_input(
    saver: BaseCheckpointSaver[Any],
    session_id: str,
    newest: CheckpointTuple,
    events: Sequence[StoredEvent],
    input_id: str,
) -> int | None:
    """Return the index in `events` of the answer to the input with an id; None if there is no such input, or it has no
    answer.
    """
    known = await find_checkpoint(saver, newest, input_id)
    if known is None:
        return None
    is_pruned = known.config["configurable"].get("checkpoint_ns") == ANSWERS
    at_its_end = pruned_state(known).values if is_pruned else await read_history(saver, session_id, known)
    own = [each for each in since_last_input(at_its_end["events"]) if each["type"] == "agent_response"]
    newest_first = range(len(events) - 1, -1, -1)
    return next((at for at in newest_first if own and events[at] == own[-1]), None)
