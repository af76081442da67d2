"""Makes cases of an evaluation from the answers of a database that people have rated.

A case has the inputs of the session up to the rated answer, as turns. An answer rated up is expected again; one that
any person rated down is given to a judge, with the notes as its rubric.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_agent.base.errors import ConfigError, InputError
from graph_agent.base.model_error_text import public_value
from graph_agent.devtools.cases import Case, CaseFile, dump_cases, load_cases
from graph_agent.devtools.export import case_content
from graph_agent.devtools.recording import Recording, read_recording
from graph_agent.session.feedback import seq_of_answer
from graph_agent.session.history import EventReader, list_threads, newest_feedback
from graph_agent.session.trace import inputs_of

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

_RUBRIC = "People rated this answer down, and a good answer avoids what they disliked: {answer}"
_NOTE = "\n{by} wrote: {note}"


async def rated_cases(saver: BaseCheckpointSaver[Any]) -> list[Case]:
    """Return a case for each rated answer of a database, by session and then by place.

    Raises `DamagedSessionError` if a part of a session with feedback is missing.
    """
    return [case for session_id in sorted(await list_threads(saver)) for case in await _of(saver, session_id)]


async def rated_case(saver: BaseCheckpointSaver[Any], session_id: str, answer: int) -> Case:
    """Return the case of one rated answer of a session, by the `seq` of its event, which must have feedback."""
    return next(each for each in await _of(saver, session_id) if each.metadata["answer"] == answer)


async def case_of_rated(saver: BaseCheckpointSaver[Any], session_id: str, answer: str | int | None) -> Case:
    """Return the case of a rated answer, by the `seq` of its event or an id; None for the newest rated answer.

    Raises:
        InputError: The session has no such answer with feedback.
    """
    if isinstance(answer, str):
        answer = await seq_of_answer(saver, session_id, answer)
    cases = await _of(saver, session_id)
    found = [each for each in cases if answer in (None, each.metadata["answer"])]
    if not found:
        rated = ", ".join(str(each.metadata["answer"]) for each in cases) or "none"
        which = "answer" if answer is None else f"answer {answer!r}"
        raise InputError(f"Session {session_id!r} has no {which} with feedback; rated answers: {rated}.")
    return found[-1]


async def case_for_client(
    saver: BaseCheckpointSaver[Any], thread: str, answer: int | None, session_id: str
) -> tuple[str, str] | None:
    """Return the name of a case, and a file with it as YAML; None if there is no such answer.

    Errors of providers in the case are replaced by public texts. The case is named `<session_id>-<answer>`.

    Args:
        saver: The saver of the session.
        thread: The session, by the id of its thread.
        answer: The `seq` of the event of an answer with feedback; None for the newest one, or without any feedback for
            the newest answer.
        session_id: The session, by its name in the case.
    """
    cases = await _of(saver, thread, unrated=answer is None)
    case = next((each for each in reversed(cases) if answer in (None, each.metadata["answer"])), None)
    if case is None:
        return None
    name = f"{session_id}-{case.metadata['answer']}"
    fields = public_value(case.model_dump(mode="json", exclude_defaults=True))
    return name, dump_cases(CaseFile(cases=[Case.model_validate({**fields, "name": name, "session": session_id})]))


def cases_in(path: Path) -> CaseFile | None:
    """Return what a file of cases holds; None for a missing file, which `add_case` creates.

    Raises:
        ConfigError: The file is invalid, or its folder does not exist.
        OSError: The file cannot be read.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the folder does not exist; create it first.")
    return load_cases(path) if path.exists() else None


def add_case(path: Path, file: CaseFile | None, case: Case, agent: Path | None) -> None:
    """Add a case to a file of cases, or replace the one with its name; comments in the file are lost.

    Args:
        path: The file.
        file: What the file holds, from `cases_in`; None for a new file.
        agent: The agent file that a new file of cases names; None if there is no agent file.

    Raises:
        OSError: The file cannot be written.
    """
    # By the name: an answer that is rated again replaces its case.
    others = [each for each in file.cases if each.name != case.name] if file is not None else []
    named = None if agent is None else Path(os.path.relpath(agent.resolve(), path.resolve().parent)).as_posix()
    made = CaseFile(agent=file.agent if file is not None else named, cases=[*others, case])
    path.write_text(dump_cases(made), encoding="utf-8")


async def _of(saver: BaseCheckpointSaver[Any], session_id: str, *, unrated: bool = False) -> list[Case]:
    """Return the cases of the rated answers of one session, in order; empty if it has none, or does not exist.

    With `unrated`, a session without feedback has the case of its newest answer.
    """
    found = await EventReader(None, saver, session_id).read_tail(pending=True)
    events = found[1] if found is not None else []
    ratings: Mapping[int, Mapping[str, Mapping[str, Any]]] = newest_feedback(events)
    if unrated and not ratings:
        ratings = {at: {} for at, entry in enumerate(events) if entry["type"] == "agent_response"}
        ratings = dict([*ratings.items()][-1:])
    if not ratings:
        return []
    recording = await read_recording(saver, session_id)
    ends = [*accumulate(len(own) for own in inputs_of(events))]
    return [
        _case(recording, sum(end <= answer for end in ends) + 1, answer, [*given.values()])
        for answer, given in sorted(ratings.items())
    ]


def _case(recording: Recording, number: int, answer: int, ratings: Sequence[Mapping[str, Any]]) -> Case:
    """Return the case of one answer.

    For an answer with a thumb down, a judge scores the new answer by a rubric that has the old answer and the notes,
    and no calls are expected. Any other answer and its calls are expected as they were.

    Args:
        recording: The session.
        number: Number of the answer's input, from 1.
        answer: Index of the answer's event.
        ratings: The feedback on it.
    """
    session_id = recording.session_id
    content = case_content(f"{session_id}-{answer}", session_id, recording.inputs[:number])
    down = [each for each in ratings if each["rating"] == "down"]
    if down:
        given = content["expect"].pop("answer", {}).get("equals", "")
        notes = "".join(_NOTE.format(by=each["by"], note=each["note"]) for each in down if "note" in each)
        # What the agent did for a bad answer is no expectation either.
        del content["expect"]["calls"]
        content["expect"]["answer"] = {"judge": {"rubric": _RUBRIC.format(answer=given) + notes}}
    fields = ("rating", "by", "note", "evaluate")
    about = [{name: each[name] for name in fields if name in each} for each in ratings]
    metadata = {**content.get("metadata", {}), "answer": answer, "feedback": about}
    return Case.model_validate({**content, "metadata": metadata})
