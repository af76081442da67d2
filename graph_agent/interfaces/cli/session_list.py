"""Implements `graph-agent sessions`, which lists the sessions of a database."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.base._internal.text import printable
from graph_agent.base.errors import InputError
from graph_agent.interfaces.cli import run_async
from graph_agent.interfaces.cli.options import AGENT_FILE, ConfigOption, DbOption, database_url_of, open_sessions
from graph_agent.interfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from graph_agent.session.history import SessionSummary

_COLUMNS = ("SESSION", "STATUS", "MESSAGES", "MODEL CALLS", "AGE", "TITLE", "FEEDBACK")
_ACTIVITIES = {
    "running": "running",
    "waiting": "waiting for an answer",
    "interrupted": "interrupted",
    "newer": "needs a newer version",
    "damaged": "damaged",
}
"""Activity of a session → its status in words.

An idle session is not among them: it has the status of its newest input.
"""
_STYLES = {"running": "green", "waiting": "yellow", "interrupted": "red", "damaged": "red"}
"""Activity of a session → style of rich."""
_PAGE = 200
"""Sessions to read at a time when only some of them are listed."""


def sessions(
    context: typer.Context,
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number of sessions; 0 for all.")] = 50,
    status: Annotated[
        str | None,
        typer.Option("--status", help="Only those with this status, such as waiting, interrupted or completed."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Only those of this user: the name of an API key of the server.")
    ] = None,
    rated: Annotated[bool, typer.Option("--rated", help="Only those with feedback on an answer.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the ids only.")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per session.")] = False,
) -> None:
    """List the sessions of an agent's database, newest first: status, messages, model calls, age, title and feedback.

    On a terminal it is a table. Elsewhere the columns are separated by tabs, without a heading.
    """
    if context.invoked_subcommand is not None:
        return
    out, err = Terminal(), Terminal(stderr=True)
    accepts = _filter(status, rated=rated)
    # One more than is shown, by which the hint below is known to be true.
    found = run_async(_summaries(database_url_of(config, db), user, limit + 1 if limit else None, accepts))
    shown = found[:limit] if limit else found
    if not found and not json_lines:
        err.print(
            "There are no sessions yet." if accepts is None and user is None else "No session matches.", style="dim"
        )
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


def _filter(status: str | None, *, rated: bool) -> Callable[[SessionSummary], bool] | None:
    """Return the function that selects sessions by the options of `sessions`; None if neither option is given.

    Raises `typer.BadParameter` for an unknown status.
    """
    if status is None and not rated:
        return None
    from graph_agent.session.activity import check_status_filter

    try:
        wanted = None if status is None else check_status_filter(status)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--status") from error

    def accepts(summary: SessionSummary) -> bool:
        """Return whether a session is listed."""
        return (wanted is None or wanted == summary.shown_status) and (
            not rated or summary.thumbs_up + summary.thumbs_down > 0
        )

    return accepts


async def _summaries(
    address: str, user: str | None, limit: int | None, accepts: Callable[[SessionSummary], bool] | None
) -> list[SessionSummary]:
    """Return the summaries of a database's sessions, newest first.

    Args:
        address: The URL of the database.
        user: Name of the user; None for the sessions of all users.
        limit: Maximum number of sessions; None for all.
        accepts: Returns whether a session is listed; None for all.

    Raises:
        ConfigError: The database does not exist, cannot be opened, or is `memory:`.
    """
    from graph_agent.session.activity import group_of
    from graph_agent.session.history import summarize_sessions

    group = group_of(user)
    async with open_sessions(address) as (saver, is_running):
        if accepts is None:
            return await summarize_sessions(saver, is_running, group=group, limit=limit)
        found: list[SessionSummary] = []
        after = None
        # By pages: a database may have a hundred thousand sessions, of which the first matches are enough.
        while page := await summarize_sessions(saver, is_running, group=group, after=after, limit=_PAGE):
            found += filter(accepts, page)
            after = page[-1].id
            if limit is not None and len(found) >= limit:
                break
        return found[:limit]


def _print(out: Terminal, shown: list[SessionSummary]) -> None:
    """Print sessions as a table on a terminal, elsewhere as lines of columns separated by tabs."""
    now = datetime.now(UTC)
    rows = []
    for each in shown:
        counts = ("" if count is None else str(count) for count in (each.messages, each.model_calls))
        about = (age(each.updated_at, now), each.title, thumbs(each.thumbs_up, each.thumbs_down))
        rows.append((each.id, _ACTIVITIES.get(each.activity, each.status.lower().replace("_", " ")), *counts, *about))
    if not out.is_terminal:
        for row in rows:
            typer.echo("\t".join(map(printable, row)))
        return
    out.table(_COLUMNS, rows, [_STYLES.get(each.activity, "") for each in shown], right=("MESSAGES", "MODEL CALLS"))


def thumbs(up: int, down: int) -> str:
    """Return the numbers of positive and negative ratings, e.g. `2 up, 1 down`; an empty text if both are 0."""
    return ", ".join(f"{count} {name}" for count, name in ((up, "up"), (down, "down")) if count)


def age(moment: str, now: datetime) -> str:
    """Return the time from `moment` to `now` in its largest unit, rounded down: `40 s`, `5 min`, `3 h` or `2 d`.

    Args:
        moment: Time in ISO 8601 with a time zone; the result is an empty text if it is empty, and `0 s` if it is in the
            future.
        now: The current time, with a time zone.
    """
    if not moment:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(moment)).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
