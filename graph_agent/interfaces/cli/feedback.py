"""Implements `graph-agent feedback`, which rates an answer of a stored session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from graph_agent.interfaces.cli import run_async
from graph_agent.interfaces.cli.options import (
    AGENT_FILE,
    ConfigOption,
    DbOption,
    SessionArgument,
    database_url_of,
    no_session,
    shared_database,
)
from graph_agent.interfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from graph_agent.base.history.events import Rating
    from graph_agent.devtools.cases import Case, CaseFile


def _check_rating(value: str | None) -> str | None:
    """Return the argument `RATING` unchanged, which may be None; raise `typer.BadParameter` unless it is `up` or
    `down`.
    """
    if value not in ("up", "down", None):
        raise typer.BadParameter(f"{value!r} is no rating; give up or down.")
    return value


def feedback(
    session: SessionArgument,
    rating: Annotated[
        str | None, typer.Argument(callback=_check_rating, help="up or down; none for a --case of a rated answer.")
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer",
            help="The answer: number of its event, id of its input or message, or id that an API returned.",
            show_default="the newest",
        ),
    ] = None,
    note: Annotated[str, typer.Option("--note", "-m", help="Why, in words.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Your name, for the history.", show_default="user")] = None,
    case: Annotated[
        Path | None,
        typer.Option("--case", help="Add the answer to this file of cases for `graph-agent eval`, which may be new."),
    ] = None,
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
) -> None:
    """Rate an answer of a session, in any process, also while it runs; no model receives the rating.

    A newer rating of yours replaces the older one. `graph-agent eval --from-feedback` runs the rated answers as cases.
    """
    address = shared_database(database_url_of(config, db))
    # A number is that of an event, as `graph-agent events` prints it.
    named: str | int | None = int(answer) if answer is not None and answer.isdecimal() else answer
    if rating is None and case is None:
        raise typer.BadParameter("give up or down, or --case FILE to collect an answer that is rated already.")
    if rating is None and (note or by):
        raise typer.BadParameter("--note and --by belong to a rating; give up or down, too.")
    file: CaseFile | None = None
    if case is not None:
        from graph_agent.devtools.cases_from_feedback import cases_in

        # First: a file that cannot be read must leave no feedback behind.
        file = cases_in(case)
    made: Case | None
    if rating is None:
        made = run_async(_collect(address, session, named))
    else:
        options = {"note": note, "answer": named, "by": by, "evaluate": case is not None}
        answer_seq, made = run_async(_give(address, session, cast("Rating", rating), options))
        Terminal().line(f"Rated answer {answer_seq} of session {session}: {rating}")
    if case is not None and made is not None:
        from graph_agent.devtools.cases_from_feedback import add_case

        # With --db, there may be no agent file.
        add_case(case, file, made, config if config.exists() else None)
        Terminal(stderr=True).print(f"{case} has the case {made.name}.", style="dim")


async def _give(address: str, session_id: str, rating: Rating, options: dict[str, Any]) -> tuple[int, Case | None]:
    """Store the rating of an answer without opening the agent.

    Args:
        address: URL of the database.
        session_id: Id of the session.
        rating: `up` or `down`.
        options: The other arguments of `Session.feedback`: `note`, `answer`, `by` and `evaluate`.

    Returns:
        The number of the answer's event, and the answer as a case; None in place of the case unless `evaluate` is set.

    Raises:
        InputError: There is no such session or answer, or the note is too long.
        ConfigError: The database cannot be opened.
    """
    from graph_agent.session.feedback import give_feedback
    from graph_agent.storage.checkpoints.open import open_saver

    async with open_saver(address) as saver:
        if await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}}) is None:
            raise no_session(session_id, address)
        answer = (await give_feedback(saver, None, session_id, rating, **options))["answer"]
        if not options["evaluate"]:
            return answer, None
        from graph_agent.devtools.cases_from_feedback import rated_case

        return answer, await rated_case(saver, session_id, answer)


async def _collect(address: str, session_id: str, answer: str | int | None) -> Case:
    """Return an answer that is rated already as a case, with its ratings and notes.

    Args:
        address: URL of the database.
        session_id: Id of the session.
        answer: Number of the answer's event, id of its input or of its message; None for the newest rated answer.

    Raises:
        InputError: There is no such session or answer, or the answer has no feedback.
    """
    from graph_agent.devtools.cases_from_feedback import case_of_rated
    from graph_agent.storage.checkpoints.open import open_saver

    async with open_saver(address) as saver:
        if await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}}) is None:
            raise no_session(session_id, address)
        return await case_of_rated(saver, session_id, answer)
