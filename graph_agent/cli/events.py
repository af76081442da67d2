"""Command `graph-agent events`: prints the history of a session."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, cast

import typer

from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption, SessionArgument
from graph_agent.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from graph_agent.events.types import Event

_POLL_S = 0.5
"""Seconds between two reads of `--follow`."""


def events(
    session: SessionArgument,
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print further events as they are stored, until Ctrl-C.")
    ] = False,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Only the newest events; 0 for all.")] = 0,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
) -> None:
    """Print the events of a session, oldest first; the run may be in any process."""
    from graph_agent.spec.agent_file import load_spec

    out = Terminal()

    def show(event: Event) -> None:
        from graph_agent.cli.event_text import event_line

        if json_lines:
            typer.echo(json.dumps(event))
        else:
            out.line(event_line(event))

    asyncio.run(_read(db or load_spec(config).db, session, last, show, follow=follow))


async def _read(address: str, session_id: str, last: int, show: Callable[[Event], None], *, follow: bool) -> None:
    from graph_agent.cli.database import no_session, open_sessions
    from graph_agent.events.types import read_events
    from graph_agent.session.event_reader import EventReader

    async with open_sessions(address) as (saver, _):
        reader = EventReader(None, saver, session_id)
        if follow:
            whole = await reader.read()
            found = (0, whole) if whole is not None else None
        else:
            found = await reader.read_tail(last=last or None)
        if found is None:
            raise no_session(session_id, address)
        for event in read_events(found[1], session_id, found[0])[-last:]:
            show(event)
        while follow:
            await asyncio.sleep(_POLL_S)
            before = reader.count
            for number, entry in enumerate(await reader.read() or (), before):
                [event] = read_events([entry], session_id)
                show(cast("Event", {**event, "seq": number}))
