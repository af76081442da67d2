"""Command `graph-agent sessions`: lists the sessions of a database; `session_files` has its subcommands."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent._internal.printable import printable
from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption
from graph_agent.cli.terminal import Terminal

if TYPE_CHECKING:
    from graph_agent.session.summaries import SessionSummary

_COLUMNS = ("SESSION", "STATUS", "TURNS", "AGE", "TITLE")
_ACTIVITIES = {
    "running": "running",
    "waiting": "waiting for an answer",
    "interrupted": "interrupted",
    "newer": "needs a newer version",
}
_STYLES = {"running": "green", "waiting": "yellow", "interrupted": "red"}


def sessions(
    context: typer.Context,
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number of sessions; 0 for all.")] = 50,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the ids only.")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per session.")] = False,
) -> None:
    """List the sessions of an agent's database, newest first: status, turns, age and title.

    On a terminal it is a table. Elsewhere the columns are separated by tabs, without a heading.
    """
    from graph_agent.spec.agent_file import load_spec

    if context.invoked_subcommand is not None:
        return
    out, err = Terminal(), Terminal(stderr=True)
    found = asyncio.run(_summaries(db or load_spec(config).db, limit + 1 if limit else None))
    shown = found[:limit] if limit else found
    if not found and not json_lines:
        err.print("There are no sessions yet.", style="dim")
    elif json_lines:
        for each in shown:
            typer.echo(json.dumps(asdict(each)))
    elif quiet:
        for each in shown:
            out.line(each.id)
    else:
        _print(out, shown)
    if len(shown) < len(found) and not json_lines:
        err.print(f"The newest {limit} are shown; --limit 0 shows all.", style="dim")


async def _summaries(address: str, limit: int | None) -> list[SessionSummary]:
    from graph_agent.cli.database import open_sessions
    from graph_agent.session.summaries import summarize_sessions

    async with open_sessions(address) as (saver, is_running):
        return await summarize_sessions(saver, is_running, limit=limit)


def _print(out: Terminal, shown: list[SessionSummary]) -> None:
    now = datetime.now(UTC)
    rows = [(each.id, status_text(each), str(each.turns), age(each.updated_at, now), each.title) for each in shown]
    if not out.is_terminal:
        for row in rows:
            typer.echo("\t".join(map(printable, row)))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(*_COLUMNS, box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    table.columns[2].justify = "right"
    for each, row in zip(shown, rows, strict=True):
        cells = [Text(printable(cell)) for cell in row]
        cells[1].stylize(_STYLES.get(each.activity, ""))
        table.add_row(*cells)
    out.draw(table)


def status_text(summary: SessionSummary) -> str:
    """Return what a session does, or how its newest input ended, in words."""
    return _ACTIVITIES.get(summary.activity, summary.status.lower().replace("_", " "))


def age(moment: str, now: datetime) -> str:
    """Return the time since a moment in its largest unit, e.g. `5 min`.

    Args:
        moment: ISO 8601, with its offset; empty if unknown.
        now: The current time, with its zone.
    """
    if not moment:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(moment)).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
