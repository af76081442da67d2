"""Implements `graph-agent report`, which compares groups of the inputs of a database."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption
from graph_agent.cli.terminal import Terminal

if TYPE_CHECKING:
    from graph_agent.evaluation.arms import Arm, InputRow
    from graph_agent.evaluation.statistics import Estimate

_FORMS = {"success": ".0%", "steps": ".2f", "tokens": ",.0f", "cost": ".4f", "seconds": ".2f"}


def report(
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    since: Annotated[
        datetime | None,
        typer.Option("--since", formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="Only inputs from this time on, in UTC."),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="The field to group by: planner, model, or another field of events.")
    ] = "planner",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per group.")] = False,
) -> None:
    """Compare the inputs of a database, by default by planner: success, steps, tokens, cost and seconds.

    The groups are the arms of the planner's rollout. Intervals are of 95 %; inputs that have not ended do not count.
    """
    from graph_agent.agent_file.spec import load_spec
    from graph_agent.evaluation.arms import arms_of

    begin = None if since is None else since.replace(tzinfo=UTC)
    rows, unread = asyncio.run(_rows(db or load_spec(config).db, by))
    arms = arms_of(row for row in rows if begin is None or row.at >= begin)
    out, err = Terminal(), Terminal(stderr=True)
    if as_json:
        for arm in arms:
            typer.echo(json.dumps({"by": by, **arm.as_json(arms[0] if arm is not arms[0] else None)}))
    elif arms:
        for line in _lines(arms, by):
            out.line(line)
    else:
        err.print("There are no such inputs yet.", style="dim")
    for session_id, fault in unread:
        err.line(f"warning: session {session_id} was left out: {fault}", style="yellow")


async def _rows(address: str, field: str) -> tuple[list[InputRow], list[tuple[str, str]]]:
    """Return the inputs, and the sessions that cannot be read, each with the reason."""
    from graph_agent.cli.options import open_sessions
    from graph_agent.errors import GraphAgentError
    from graph_agent.evaluation.arms import rows_of
    from graph_agent.session.event_reader import EventReader
    from graph_agent.session.history import list_threads

    rows: list[InputRow] = []
    unread: list[tuple[str, str]] = []
    async with open_sessions(address) as (saver, _):
        for session_id in await list_threads(saver):
            try:
                rows += rows_of(await EventReader(None, saver, session_id).read() or (), field)
            except GraphAgentError as error:
                unread.append((session_id, str(error)))
    return rows, unread


def _lines(arms: list[Arm], by: str) -> list[str]:
    names = [name for name in _FORMS if any(name in arm.estimates() for arm in arms)]
    table = [[by, "inputs", *names]]
    for arm in arms:
        found = arm.estimates()
        cells = [_cell(found[name], _FORMS[name]) if name in found else "" for name in names]
        table.append([arm.name, f"{len(arm.rows):,}", *cells])
    for arm in arms[1:]:
        found = arm.minus(arms[0])
        cells = [_cell(found[name], f"+{_FORMS[name]}") if name in found else "" for name in names]
        table.append([f"{arm.name} - {arms[0].name}", "", *cells])
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _cell(estimate: Estimate, form: str) -> str:
    value = format(estimate.value, form)
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({format(estimate.low, form)} to {format(estimate.high, form)})"
