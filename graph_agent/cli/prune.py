"""Implements `graph-agent prune`, which removes old checkpoints of a database."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption, check_session_ids
from graph_agent.cli.terminal import Terminal

if TYPE_CHECKING:
    from graph_agent.checkpoints.maintenance import PruneReport

_DURATION = re.compile(r"(\d{1,9})\s*([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def prune(
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", min=1, help="Keep this number of the newest checkpoints of each session."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", help="Remove checkpoints of at least this age, e.g. 30d, 12h or 90m.", show_default="30d"
        ),
    ] = None,
    session: Annotated[
        list[str] | None,
        typer.Option("--session", "-s", callback=check_session_ids, help="Only this session; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per session, and one with the sums.")
    ] = False,
) -> None:
    """Remove old checkpoints from an agent's database, also while it is in use, and free their space.

    The state, the messages, the events and the open questions of each session remain, with its first checkpoint and
    the newest one of each branch. Sessions with a run under way are skipped.
    """
    from graph_agent.agent_file.spec import load_spec
    from graph_agent.checkpoints.maintenance import prune as prune_database
    from graph_agent.cli.options import shared_database

    if keep_last is not None and older_than is not None:
        raise typer.BadParameter("give one of --keep-last and --older-than.", param_hint="--older-than")
    age = parse_duration(older_than) if older_than is not None else None
    address = shared_database(db or load_spec(config).db)
    report = asyncio.run(
        prune_database(address, keep_last=keep_last, older_than=age, sessions=session or None, dry_run=dry_run)
    )
    if not json_lines:
        _print(report)
        return
    for each in report.sessions:
        typer.echo(
            json.dumps({"session": each.id, **{key: value for key, value in asdict(each).items() if key != "id"}})
        )
    typer.echo(json.dumps({key: value for key, value in asdict(report).items() if key != "sessions"}))


def parse_duration(text: str) -> timedelta:
    """Return a time such as `30d`, `12h`, `90m`, `45s` or `2w`.

    Raises:
        typer.BadParameter: If the text has another form, or the time is too long.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no duration; give a number and a unit, such as 30d, 12h, 90m, 45s or 2w.",
            param_hint="--older-than",
        )
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long.", param_hint="--older-than") from None


def size_text(size: int) -> str:
    """Return a number of bytes in a suitable unit, e.g. `1.5 MB`."""
    amount, unit = float(abs(size)), "B"
    for larger in ("KB", "MB", "GB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    sign = "-" if size < 0 else ""
    return f"{sign}{amount:.{0 if unit == 'B' else 1}f} {unit}"


def _print(report: PruneReport) -> None:
    out, err = Terminal(), Terminal(stderr=True)
    for each in report.sessions:
        if each.checkpoints:
            out.line(
                f"{each.id}: {each.checkpoints} checkpoints with {each.writes} writes ({size_text(each.bytes)}); "
                f"{each.kept} remain"
            )
        if each.skipped is not None:
            err.print(f"{each.id} was skipped: {each.skipped}.", style="yellow")
    verb = "Would remove" if report.dry_run else "Removed"
    out.line(
        f"{verb} {report.checkpoints} checkpoints with {report.writes} writes: "
        f"{size_text(report.bytes)} of stored data."
    )
    if report.reasons:
        why = "; ".join(f"{number} {reason}" for reason, number in report.reasons.items())
        out.line(f"{sum(report.reasons.values())} checkpoints remain: {why}.")
    if not report.dry_run:
        freed = report.size_before - report.size_after
        out.line(
            f"The database takes {size_text(report.size_after)} on disk, {size_text(abs(freed))} "
            f"{'less' if freed >= 0 else 'more'} than before."
        )
