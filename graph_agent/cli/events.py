"""Implements `graph-agent events`, which prints the history of a session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from graph_agent._internal.failure_log import mask_named_secrets
from graph_agent._internal.text import text_of
from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption, SessionArgument
from graph_agent.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from graph_agent.state.events import Event


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
    requests: Annotated[
        bool, typer.Option("--requests", help="Print the requests that models received in place of the events.")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
) -> None:
    """Print the events of a session, oldest first; the run may be in any process."""
    from graph_agent.agent_file.spec import load_spec

    out = Terminal()

    if requests:
        if follow:
            raise typer.BadParameter("--requests prints the stored requests; leave --follow out.")
        asyncio.run(_show_requests(db or load_spec(config).db, session, last, out, as_json=json_lines))
        return

    def show(event: Event) -> None:
        if event["type"] == "model_request":
            return  # `--requests` shows it
        if json_lines:
            typer.echo(json.dumps(event))
        else:
            out.line(event_line(event))

    asyncio.run(_read(db or load_spec(config).db, session, last, show, follow=follow))


async def _read(address: str, session_id: str, last: int, show: Callable[[Event], None], *, follow: bool) -> None:
    from graph_agent.cli.options import no_session, open_sessions
    from graph_agent.session.event_reader import EventReader
    from graph_agent.state.events import read_events

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


async def _show_requests(address: str, session_id: str, last: int, out: Terminal, *, as_json: bool) -> None:
    from dataclasses import asdict

    from graph_agent.cli.options import no_session, open_sessions
    from graph_agent.session.event_reader import EventReader
    from graph_agent.state.model_requests import requests_of

    async with open_sessions(address) as (saver, _):
        events = await EventReader(None, saver, session_id).read()
    if events is None:
        raise no_session(session_id, address)
    for number, request in [*enumerate(requests_of(events), 1)][-last:]:
        if as_json:
            typer.echo(json.dumps({"request": number, **asdict(request)}))
            continue
        of = f"{len(request.messages)} messages, {len(request.tools)} tools"
        mark = ", reconstructed from the history" if request.reconstructed else ""
        by = f"delegate {request.delegate}, " if request.delegate else ""
        out.line(f"request {number}, {by}step {request.step}, {request.purpose}, {request.model}: {of}{mark}")
        if request.removed:
            out.line(f"  - {request.removed} messages of the request before")
        for message in request.added:
            calls = "".join(f" {call['name']} {compact(call['args'])}" for call in message.get("tool_calls", ()))
            out.line(f"  + {message['type']}: {compact(text_of(message['content']))}{calls}")


_LENGTH = 200
"""Maximum characters of an event's content in its line."""


def event_line(event: Mapping[str, Any]) -> str:
    """Return an event as one line: number, local time, step, type and content; control characters are kept.

    Args:
        event: An event as read, with its `seq`.
    """
    at = datetime.fromisoformat(event["ts"]).astimezone().strftime("%H:%M:%S")
    step = f"step {event['step']}" if event["step"] else ""
    return f"{event['seq']:>4}  {at}  {step:<7} {event['type']:<20} {_content(event)}".rstrip()


def compact(value: Any) -> str:
    """Return a JSON value as text of at most 200 characters, with `…` if it is cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(text[: 10 * _LENGTH].split())
    return line if len(line) <= _LENGTH else f"{line[: _LENGTH - 1]}…"


def _content(event: Mapping[str, Any]) -> str:
    match event["type"]:
        case "user_message" | "steering" | "agent_response":
            return compact(text_of(event["content"]))
        case "plan":
            return compact(event["action"])
        case "tool_call":
            return f"{event['name']} {compact(event['arguments'])}{_refused(event)}"
        case "tool_result":
            return f"{event['name']} {event['status']}: {compact(text_of(event['content']))}"
        case "delegation_request":
            return f"{event['target']}: {compact(event['task'])}{_refused(event)}"
        case "delegation_response" | "background_result":
            return f"{event['target']} {event['status']}: {compact(text_of(event['content']))}"
        case "approval_request":
            calls = "; ".join(f"{call['name']} {compact(call['arguments'])}" for call in event["calls"])
            return f"{_source(event)}{calls}"
        case "approval_decision":
            by = f"{_source(event)}{event['name']}: {event['decision']} by {event['decided_by']}"
            edited = " ".join([event.get("edited_name", ""), compact(event.get("arguments", ""))]).strip()
            return ": ".join(each for each in (by, edited, compact(event.get("message", ""))) if each)
        case "delegation_progress":
            return f"{event['target']}: {compact(event['content'])}"
        case "summary":
            return compact(event["content"])
        case "loop_detected":
            return f"{event['count']} times: {', '.join(event['pattern'])} (equal {event['repeated']})"
        case "limit":
            return f"{event['reason']}: {event['limit']:g}"
        case "status":
            return f"{event['from']} -> {event['to']}"
        case "warning" | "error":
            return compact(mask_named_secrets(event["message"]))
        case _:
            own = {name: value for name, value in event.items() if name not in _COMMON}
            return compact(own) if own else ""


def _refused(event: Mapping[str, Any]) -> str:
    return f" (not run: {event['refused']})" if "refused" in event else ""


def _source(event: Mapping[str, Any]) -> str:
    """Return the delegate or the middleware whose approval an event is; empty for the agent itself."""
    for kind in ("delegate", "middleware"):
        if kind in event:
            return f"{kind} {event[kind]}: "
    return ""


_COMMON = frozenset({"type", "seq", "ts", "session_id", "step"})
