"""Implements `events`, which prints the events or the model requests of a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import text_of
from graph_agent.base.origins import origins_text
from graph_agent.interfaces.cli import options, run_async
from graph_agent.interfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from graph_agent.base.history.events import Event


_COMMON = frozenset({"type", "seq", "ts", "session_id", "step"})
"""Fields that every event has. They are left out where an event of an unknown type is printed with all its fields."""
_POLL_S = 0.5
"""Seconds between two reads of the database with `--follow`."""

_LENGTH = 200
"""Maximum characters of content in the line of an event."""


def events(
    session: options.SessionArgument,
    config: options.ConfigOption = options.AGENT_FILE,
    db: options.DbOption = None,
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
    out = Terminal()

    if requests:
        if follow:
            raise typer.BadParameter("--requests prints the stored requests; leave --follow out.")
        _show_requests(options.database_url_of(config, db), session, last, out, as_json=json_lines)
        return

    def show(event: Event) -> None:
        """Print one event as a line or as JSON. Recorded model requests are left out; only `--requests` prints them."""
        if event["type"] == "model_request":
            return  # `--requests` shows it
        if json_lines:
            typer.echo(json.dumps(event))
        else:
            out.line(event_line(event))

    run_async(_read(options.database_url_of(config, db), session, last, show, follow=follow))


async def _read(address: str, session_id: str, last: int, show: Callable[[Event], None], *, follow: bool) -> None:
    """Pass the stored events of a session to `show`, oldest first, and with `follow` also every later one.

    Events of a wave that still runs (the parallel calls of one reply) are included.

    Args:
        address: URL of the database.
        session_id: Id of the session.
        last: Only this many newest events of those that are stored already; 0 for all.
        show: Called with each event.
        follow: Read the database for new events every half second, until the task is cancelled.

    Raises:
        InputError: The database has no such session.
        ConfigError: The database does not exist or cannot be opened.
    """
    import asyncio

    from graph_agent.base.history.events import read_events
    from graph_agent.session.history import EventReader

    async with options.open_sessions(address) as (saver, _):
        reader = EventReader(None, saver, session_id)
        if follow:
            # With the events of a wave that still runs: a follower wants them when they happen.
            found = await reader.read_early()
        else:
            tail = await reader.read_tail(last=last or None, pending=True)
            found = list(enumerate(tail[1], tail[0])) if tail is not None else None
        if found is None:
            raise options.no_session(session_id, address)
        shown = found[-last:]
        while True:
            for number, entry in shown:
                [event] = read_events([entry], session_id, number)
                show(event)
            if not follow:
                return
            # The run may be in another process, which cannot wake this one.
            await asyncio.sleep(_POLL_S)
            shown = await reader.read_early() or []


def _show_requests(address: str, session_id: str, last: int, out: Terminal, *, as_json: bool) -> None:
    """Print the recorded requests of a session to models, each as what it added to and removed from the request before.

    Long texts are cut. Each request also has the model's reasoning, if it was recorded.

    Args:
        address: URL of the database.
        session_id: Id of the session.
        last: Only this many newest requests; 0 for all.
        out: Where to print.
        as_json: Print each request as a JSON object with all its messages instead.

    Raises:
        InputError: The database has no such session.
        ConfigError: The database does not exist or cannot be opened.
    """
    from dataclasses import asdict

    from graph_agent.session.history import model_requests

    events = run_async(options.stored_events(address, session_id))
    for number, request in [*enumerate(model_requests(events), 1)][-last:]:
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
            calls = "".join(f" {call['name']} {short_json(call['args'])}" for call in message.get("tool_calls", ()))
            out.line(f"  + {message['type']}: {short_json(text_of(message['content']))}{calls}")
        if request.reasoning:
            out.line(f"  reasoning of the reply: {short_json(request.reasoning)}")


def event_line(event: Mapping[str, Any]) -> str:
    """Return an event as one line of number, local time, step, type and content.

    For example `4  12:30:05  step 1  tool_call  search {"q": "hotel"}`, with each column padded to a fixed width. A
    step of 0 is left out. Control characters are kept, so print the line with `Terminal.line`.
    """
    at = datetime.fromisoformat(event["ts"]).astimezone().strftime("%H:%M:%S")
    step = f"step {event['step']}" if event["step"] else ""
    return f"{event['seq']:>4}  {at}  {step:<7} {event['type']:<20} {_content(event)}".rstrip()


def short_json(value: Any) -> str:
    """Return a value as one line of at most 200 characters, ending in `…` if it was cut.

    A text is shown without quotation marks, any other value as JSON. Each run of white space becomes one blank.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    # Cut before it is split: a result may have megabytes.
    line = " ".join(text[: 10 * _LENGTH].split())
    return line if len(line) <= _LENGTH else f"{line[: _LENGTH - 1]}…"


def _content(event: Mapping[str, Any]) -> str:
    """Return the content of an event as one line, e.g. the text of a message, or a call with its arguments.

    Which fields the line has depends on the type of the event. Long values are cut (`short_json`), and the values of
    named secrets are masked in warnings and errors. An event of an unknown type is shown as JSON of the fields that not
    every event has, or as an empty text if it has none.
    """
    match event["type"]:
        case "user_message" | "steering" | "agent_response":
            return short_json(text_of(event["content"]))
        case "plan":
            return short_json(event["action"])
        case "tool_call":
            return f"{event['name']} {short_json(event['arguments'])}{_refused(event)}{_tainted(event)}"
        case "tool_result":
            return f"{event['name']} {event['status']}: {short_json(text_of(event['content']))}"
        case "delegation_request":
            return f"{event['target']}: {short_json(event['task'])}{_refused(event)}"
        case "delegation_response" | "background_result":
            return f"{event['target']} {event['status']}: {short_json(text_of(event['content']))}"
        case "approval_request":
            calls = "; ".join(f"{call['name']} {short_json(call['arguments'])}" for call in event["calls"])
            return f"{_source(event)}{calls}"
        case "approval_decision":
            by = f"{_source(event)}{event['name']}: {event['decision']} by {event['decided_by']}"
            edited = " ".join([event.get("edited_name", ""), short_json(event.get("arguments", ""))]).strip()
            return ": ".join(each for each in (by, edited, short_json(event.get("message", ""))) if each)
        case "delegation_progress":
            return f"{event['target']}: {short_json(event['content'])}"
        case "feedback":
            rated = f"{event['rating']} on answer {event['answer']} by {event['by']}"
            return f"{rated}: {short_json(event['note'])}" if "note" in event else rated
        case "rename":
            return f"{event['title']} by {event['by']}"
        case "fork":
            left_out = "; ".join(f"{call['name']} {call['status']}" for call in event["calls"])
            return f"of {event['origin']} by {event['by']}{f', without {left_out}' if left_out else ''}"
        case "revocation":
            return f"{_source(event)}{event['name']} by {event['by']}"
        case "recall":
            facts = event["facts"] or event.get("kept", ())
            return f"{len(facts)}{'' if event['facts'] else ' kept'}: {' '.join(facts)}"
        case "summary":
            return short_json(event["content"])
        case "loop_detected":
            return f"{event['count']} times: {', '.join(event['pattern'])} (equal {event['repeated']})"
        case "limit":
            return f"{event['reason']}: {event['limit']:g}"
        case "status":
            return f"{event['from']} -> {event['to']}"
        case "warning" | "error":
            return short_json(mask_named_secrets(event["message"]))
        case _:
            own = {name: value for name, value in event.items() if name not in _COMMON}
            return short_json(own) if own else ""


def _refused(event: Mapping[str, Any]) -> str:
    """Return ` (not run: REASON)` if a planned call was refused, else an empty text."""
    return f" (not run: {event['refused']})" if "refused" in event else ""


def _tainted(event: Mapping[str, Any]) -> str:
    """Return ` (untrusted: ORIGINS)` if untrusted text decides on arguments of a call, otherwise an empty text."""
    found = origins_text(event, tainted=True)
    return f" (untrusted: {'; '.join(found)})" if found else ""


def _source(event: Mapping[str, Any]) -> str:
    """Return what asked for an approval, as `delegate NAME: ` or `middleware NAME: `; empty for the agent itself."""
    for kind in ("delegate", "middleware"):
        if kind in event:
            return f"{kind} {event[kind]}: "
    return ""
