"""Implements `report`, which compares the inputs of a database by how they were planned."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.interfaces.cli import run_async
from graph_agent.interfaces.cli.options import AGENT_FILE, ConfigOption, DbOption, database_url_of, open_sessions
from graph_agent.interfaces.cli.terminal import Terminal
from graph_agent.interfaces.cli.texts import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graph_agent.devtools.statistics import Arm, InputRow

_MOST_NAMED = 20
"""Maximum sessions that a line names."""
_FORMS = {"success": ".0%", "thumbs": ".0%", "steps": ".2f", "tokens": ",.0f", "cost": ".4f", "seconds": ".2f"}
"""Name of an estimate → format of its numbers."""


def report(
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    since: Annotated[
        datetime | None,
        typer.Option("--since", formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="Only inputs from this time on, in UTC."),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            "--by", help="The field to group by: planner, model, prompts, tools, prompts.NAME, or another of events."
        ),
    ] = "planner",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per group.")] = False,
) -> None:
    """Compare the inputs of a database, by default by planner: success, steps, tokens, cost and seconds.

    The groups are the arms of the planner's rollout. Intervals have a confidence of 95 %; inputs that have not ended do
    not count, and a line names their sessions.
    """
    from graph_agent.devtools.statistics import arms_of

    # Times of events are in UTC.
    begin = None if since is None else since.replace(tzinfo=UTC)
    found, begun, unread = run_async(_rows(database_url_of(config, db), by))
    chosen = [[row for row in rows if begin is None or row.at >= begin] for rows in found]
    arms = arms_of(row for rows in chosen for row in rows)
    out, err = Terminal(), Terminal(stderr=True)
    if as_json:
        for arm in arms:
            typer.echo(json.dumps({"by": by, **arm.as_json(arms[0] if arm is not arms[0] else None)}))
    elif arms:
        for line in [*_lines(arms, by), *_early_lines(arms, by)]:
            out.line(line)
        if feedback := _feedback_line(chosen):
            out.line(feedback)
    else:
        err.print("There are no such inputs yet.", style="dim")
    if begun:
        shown = ", ".join([*begun[:_MOST_NAMED], *(["…"] if len(begun) > _MOST_NAMED else [])])
        err.line(f"Sessions whose newest input has not ended, and does not count: {shown}", style="dim")
    for session_id, fault in unread:
        err.line(f"warning: session {session_id} was left out: {fault}", style="yellow")


async def _rows(address: str, field: str) -> tuple[list[list[InputRow]], list[str], list[tuple[str, str]]]:
    """Read every session of a database, and return its ended inputs with their measured values.

    Args:
        address: URL of the database.
        field: The field of events whose value is the group of an input.

    Returns:
        A list of the ended inputs for each session that can be read; the ids of sessions whose newest input has not
        ended; and pairs of the id of a session that cannot be read and the reason.

    Raises:
        ConfigError: The database does not exist, cannot be opened, or is `memory:`.
    """
    from graph_agent.base.errors import GraphAgentError
    from graph_agent.devtools.statistics import rows_of
    from graph_agent.session.history import EventReader, list_threads
    from graph_agent.session.trace import spans_of

    rows: list[list[InputRow]] = []
    begun: list[str] = []
    unread: list[tuple[str, str]] = []
    async with open_sessions(address) as (saver, _):
        for session_id in await list_threads(saver):
            try:
                found = await EventReader(None, saver, session_id).read_tail(pending=True)
                events = found[1] if found is not None else []
                rows.append([*rows_of(events, field)])
                if events and spans_of(events)[-1].status == "RUNNING":
                    begun.append(session_id)
            # One damaged session must not hide the others.
            except GraphAgentError as error:
                unread.append((session_id, str(error)))
    return rows, begun, unread


def _feedback_line(sessions: Sequence[Sequence[InputRow]]) -> str:
    """Return the numbers of thumbs and of sessions with feedback in words; an empty text without feedback.

    `sessions` has the inputs of each session.
    """
    up, down = (sum(getattr(row, name) for rows in sessions for row in rows) for name in ("up", "down"))
    rated = sum(any(row.up + row.down for row in rows) for rows in sessions)
    return f"feedback: {up} up, {down} down, in {counted(rated, 'session')}" if rated else ""


def _lines(arms: list[Arm], by: str) -> list[str]:
    """Return the table of `report` as lines: a heading, and for each group a row of estimates.

    After them comes a row for each group but the first, with its differences from the first group. Estimates that no
    group has get no column.

    Args:
        arms: The groups, at least one.
        by: The field that the inputs are grouped by; the heading of the first column.
    """
    names = [name for name in _FORMS if any(name in arm.estimates() for arm in arms)]
    # Aligned as text: the output is read by programs, too.
    table = [[by, "inputs", *names]]
    for arm in arms:
        found = arm.estimates()
        cells = [found[name].text(_FORMS[name]) if name in found else "" for name in names]
        table.append([arm.name, f"{len(arm.rows):,}", *cells])
    for arm in arms[1:]:
        found = arm.minus(arms[0])
        cells = [found[name].text(f"+{_FORMS[name]}") if name in found else "" for name in names]
        table.append([f"{arm.name} - {arms[0].name}", "", *cells])
    return _aligned(table)


def _early_lines(arms: list[Arm], by: str) -> list[str]:
    """Return an empty line and a table of calls and requests that began before a plan had asked for them.

    There is one row for each group with any. The list is empty if no group has any.

    Args:
        arms: The groups.
        by: The field that the inputs are grouped by; the heading of the first column.
    """
    table = [[by, "early", "used", "saved s", "wasted s", "wasted cost"]]
    for arm in arms:
        if (early := arm.early).started:
            used = f"{early.used:,} ({early.hit_rate:.0%})"
            sums = [f"{early.saved_s:,.2f}", f"{early.wasted_s:,.2f}", f"{early.wasted_cost:.4f}"]
            table.append([arm.name, f"{early.started:,}", used, *sums])
    return ["", *_aligned(table)] if table[1:] else []


def _aligned(table: list[list[str]]) -> list[str]:
    """Return the rows of a table as lines with aligned columns."""
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
