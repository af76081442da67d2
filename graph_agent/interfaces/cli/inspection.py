"""Implements `events`, `trace` and `report`, which show what the sessions of a database did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size

from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import printable, text_of
from graph_agent.interfaces.cli import run_async
from graph_agent.interfaces.cli.options import (
    AGENT_FILE,
    ConfigOption,
    DbOption,
    SessionArgument,
    database_url_of,
    no_session,
    open_sessions,
    stored_events,
)
from graph_agent.interfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graph_agent.core.state.events import Event
    from graph_agent.devtools.evaluation.statistics import Arm, InputRow
    from graph_agent.session.trace import Span, TimeAxis


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
    out = Terminal()

    if requests:
        if follow:
            raise typer.BadParameter("--requests prints the stored requests; leave --follow out.")
        _show_requests(database_url_of(config, db), session, last, out, as_json=json_lines)
        return

    def show(event: Event) -> None:
        """Print one event, unless it is a recorded request of a model."""
        if event["type"] == "model_request":
            return  # `--requests` shows it
        if json_lines:
            typer.echo(json.dumps(event))
        else:
            out.line(event_line(event))

    run_async(_read(database_url_of(config, db), session, last, show, follow=follow))


async def _read(address: str, session_id: str, last: int, show: Callable[[Event], None], *, follow: bool) -> None:
    """Pass the events of a session to `show`, oldest first; raise `InputError` if there is no such session.

    Args:
        address: URL of the database.
        session_id: Id of the session.
        last: Only the newest events of those that are stored already; 0 for all.
        show: Called with each event.
        follow: Poll the database for new events every half second, until the task is cancelled.
    """
    import asyncio

    from graph_agent.core.state.events import read_events
    from graph_agent.session.history import EventReader

    async with open_sessions(address) as (saver, _):
        reader = EventReader(None, saver, session_id)
        if follow:
            found = await reader.read_early()
        else:
            tail = await reader.read_tail(last=last or None, pending=True)
            found = list(enumerate(tail[1], tail[0])) if tail is not None else None
        if found is None:
            raise no_session(session_id, address)
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
    """Print the recorded requests of a session's models: what each added to and removed from the request before.

    Args:
        address: URL of the database.
        session_id: Id of the session; `InputError` if there is none.
        last: Only the newest requests; 0 for all.
        out: Where to print.
        as_json: Print each request as a JSON object with all its messages.
    """
    from dataclasses import asdict

    from graph_agent.session.history import model_requests

    events = run_async(stored_events(address, session_id))
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


_LENGTH = 200
"""Maximum characters of an event's content in its line."""


def event_line(event: Mapping[str, Any]) -> str:
    """Return an event as one line: number, local time, step, type and content; control characters are kept.

    E.g. `   4  12:30:05  step 1  tool_call            search {"q": "hotel"}`. A step of 0 is left out.
    """
    at = datetime.fromisoformat(event["ts"]).astimezone().strftime("%H:%M:%S")
    step = f"step {event['step']}" if event["step"] else ""
    return f"{event['seq']:>4}  {at}  {step:<7} {event['type']:<20} {_content(event)}".rstrip()


def short_json(value: Any) -> str:
    """Return a JSON value as one line of at most 200 characters, with single blanks, and with `…` if it is cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    # Cut before it is split: a result may have megabytes.
    line = " ".join(text[: 10 * _LENGTH].split())
    return line if len(line) <= _LENGTH else f"{line[: _LENGTH - 1]}…"


def _content(event: Mapping[str, Any]) -> str:
    """Return the content of an event as one line, in a form that depends on its type.

    An event of an unknown type returns the fields that not every event has.
    """
    match event["type"]:
        case "user_message" | "steering" | "agent_response":
            return short_json(text_of(event["content"]))
        case "plan":
            return short_json(event["action"])
        case "tool_call":
            return f"{event['name']} {short_json(event['arguments'])}{_refused(event)}"
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
        case "recall":
            return f"{len(event['facts'])}: {' '.join(event['facts'])}"
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


def _source(event: Mapping[str, Any]) -> str:
    """Return `delegate NAME: ` or `middleware NAME: ` if the event is an approval of that.

    Returns an empty text for the agent itself.
    """
    for kind in ("delegate", "middleware"):
        if kind in event:
            return f"{kind} {event[kind]}: "
    return ""


_COMMON = frozenset({"type", "seq", "ts", "session_id", "step"})
"""Fields that every event has, which the line of an unknown type leaves out."""


WIDTH = 80
"""Columns of a trace."""
_LABEL, _TIME, _TOKENS, _COST = 27, 7, 10, 8
_SIGNS = {"success": "✓", "answered": "✓", "error": "✗", "unknown": "?", "running": "…", "waiting": "…"}


def trace(
    session: SessionArgument,
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    number: Annotated[
        int, typer.Option("--input", help="Only this input, from 1; -1 is the newest, 0 stands for all.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per input.")] = False,
) -> None:
    """Show what a session did and when: plans, model calls and calls, with durations, tokens and cost."""
    from graph_agent.session.trace import spans_of

    roots = spans_of(run_async(stored_events(database_url_of(config, db), session)))
    if number:
        # Inputs are counted from 1, and from the end by negative numbers.
        at = number - 1 if number > 0 else len(roots) + number
        if not 0 <= at < len(roots):
            raise typer.BadParameter(f"the session has {len(roots)} inputs, and no input {number}.")
        roots, first = [roots[at]], at + 1
    else:
        first = 1
    out = Terminal()
    for index, root in enumerate(roots, first):
        if as_json:
            typer.echo(json.dumps({"input": index, **root.as_json()}))
            continue
        for line in draw(root, index):
            out.line(line)


def draw(root: Span, number: int) -> list[str]:
    """Return the lines of an input's trace, each of at most 80 columns; control characters become escapes.

    The lines are a heading, the sums, a row with a bar for each span (a plan, model call, tool call, delegation or
    wait), the notes, and an empty line.

    Args:
        root: The span of the input, with those of its plans as children.
        number: Number of the input, for the heading.
    """
    from graph_agent.session.trace import axis_of

    axis = axis_of(root)
    has_cost = root.cost is not None
    calls = sum(span.kind in ("tool", "delegation") for _, span in root.walk())
    models = sum(span.kind == "model" for _, span in root.walk())
    ended = seconds(root.duration_s) if root.duration_s is not None else "not ended"
    facts = [root.status, ended, counted(models, "model call"), counted(calls, "call")]
    if root.input_tokens or root.output_tokens:
        facts.append(f"{root.input_tokens:,} + {root.output_tokens:,} tokens")
    if root.cost is not None:
        facts.append(f"cost {root.cost:.4f}")
    lines = [_cut(f"input {number}: {one_line(root.name)}", WIDTH), _cut("  " + ", ".join(facts), WIDTH)]
    lines += _span_rows(root.children, "", axis, has_cost=has_cost)
    if axis.is_shortened:
        lines.append("  The axis shortens waits for a person.")
    lines += [_cut(f"  {note.type}: {one_line(mask_named_secrets(note.text))}", WIDTH) for note in root.notes]
    return [*lines, ""]


def _span_rows(spans: Sequence[Span], indent: str, axis: TimeAxis, *, has_cost: bool) -> list[str]:
    """Return a row for each span and, indented below it, the spans in it, as a tree.

    Args:
        spans: The spans of one level, in order.
        indent: What precedes the branch of each row: blanks and `│` of the levels above.
        axis: Maps times to positions of the bars.
        has_cost: Whether the rows have a column of the cost.
    """
    lines: list[str] = []
    for span in spans:
        last = span is spans[-1]
        lines.append(_row(span, indent + ("└ " if last else "├ "), axis, has_cost=has_cost))
        # A plan is as long as its model call, if there is only one that did not fail.
        inner = () if len(span.children) == 1 and span.children[0].kind == "model" else span.children
        lines += _span_rows(inner, indent + ("  " if last else "│ "), axis, has_cost=has_cost)
    return lines


def _row(span: Span, branch: str, axis: TimeAxis, *, has_cost: bool) -> str:
    """Return one row: label, duration, tokens, cost if `has_cost`, and the bar, which takes the rest of 80 columns.

    `branch` precedes the label, e.g. `├ `.
    """
    tokens = f"{short(span.input_tokens)}+{short(span.output_tokens)}" if span.input_tokens else ""
    columns = [
        set_cell_size(_cut(branch + _label(span), _LABEL - 1), _LABEL),
        f"{seconds(span.duration_s):>{_TIME}}",
        f"{tokens:>{_TOKENS}}",
    ]
    if has_cost:
        columns.append(f"{span.cost:>{_COST}.4f}" if span.cost is not None else " " * _COST)
    head = "".join(columns) + "  "
    return (head + _bar(span, axis, WIDTH - cell_len(head))).rstrip()


def _label(span: Span) -> str:
    """Return the label of a span, e.g. `plan 1 gpt-5`, `✓ search (needs list)` or `person: book`."""
    match span.kind:
        case "plan":
            model = f" {span.children[-1].name}" if span.children else ""
            failed = f" {span.children[-1].status}" if span.status == "error" else ""
            return f"{f'plan {span.step}' if span.step else 'plan'}{model}{failed}"
        case "answer":
            return f"answer {span.children[-1].name}"
        case "model":
            return f"{span.name} {span.status}".rstrip()
        case "wait":
            return f"person: {span.name}"
        case _:
            needs = f" (needs {', '.join(span.needs)})" if span.needs else ""
            return f"{_SIGNS.get(span.status, '-')} {one_line(span.name)}{needs}"


def _bar(span: Span, axis: TimeAxis, width: int) -> str:
    """Return the bar of a span on `width` cells: `░` while queued, then `█`, or `┄` for a wait, of at least one cell.

    A span that has not ended is `▶`, or `▏` if its run was interrupted.
    """
    from datetime import timedelta

    begin, end = (min(width - 1, int(axis.at(at) * width)) for at in (span.start, span.end))
    # The span begins when the call was taken from the queue.
    queue = min(begin, int(axis.at(span.start - timedelta(seconds=span.queued_s)) * width))
    if span.duration_s is None:
        mark = "▏" if span.status not in ("running", "waiting") else "▶"
        return " " * begin + mark
    fill = "┄" if span.kind == "wait" else "█"
    return " " * queue + "░" * (begin - queue) + fill * max(1, end - begin + (end == width - 1))


def _cut(text: str, width: int) -> str:
    """Return a text with control characters as escapes, of at most `width` terminal columns, with `…` if it is cut."""
    shown = printable(text)
    return shown if cell_len(shown) <= width else f"{set_cell_size(shown, width - 1).rstrip()}…"


def one_line(text: str) -> str:
    """Return the first 800 characters of a text, with each run of white space as one blank, and none at the ends."""
    return " ".join(text[: 10 * WIDTH].split())


def counted(count: int, what: str) -> str:
    """Return a number with its noun, in the plural by `s`, e.g. `1 call` or `1,200 calls`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def short(count: int) -> str:
    """Return a number of tokens in at most five characters, e.g. `9999` or `12k`."""
    return f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"


def seconds(duration_s: float | None) -> str:
    """Return a duration, e.g. `120 ms`, `1.5 s`, `2.0 min` or `1.5 h`; an empty text for None."""
    if duration_s is None:
        return ""
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 100:
        return f"{duration_s:.1f} s"
    if duration_s < 6000:
        return f"{duration_s / 60:.1f} min"
    return f"{duration_s / 3600:.1f} h"


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
        str, typer.Option("--by", help="The field to group by: planner, model, or another field of events.")
    ] = "planner",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per group.")] = False,
) -> None:
    """Compare the inputs of a database, by default by planner: success, steps, tokens, cost and seconds.

    The groups are the arms of the planner's rollout. Intervals have a confidence of 95 %; inputs that have not ended do
    not count, and a line names their sessions.
    """
    from graph_agent.devtools.evaluation.statistics import arms_of

    # Times of events are in UTC.
    begin = None if since is None else since.replace(tzinfo=UTC)
    rows, begun, unread = run_async(_rows(database_url_of(config, db), by))
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
    if begun:
        shown = ", ".join([*begun[:_MOST_NAMED], *(["…"] if len(begun) > _MOST_NAMED else [])])
        err.line(f"Sessions whose newest input has not ended, and does not count: {shown}", style="dim")
    for session_id, fault in unread:
        err.line(f"warning: session {session_id} was left out: {fault}", style="yellow")


async def _rows(address: str, field: str) -> tuple[list[InputRow], list[str], list[tuple[str, str]]]:
    """Read the sessions of a database.

    Returns the ended inputs, each with the value of the event field `field` as its group; the ids of sessions whose
    newest input has not ended; and the ids of sessions that cannot be read, each with the reason.
    """
    from graph_agent.base.errors import GraphAgentError
    from graph_agent.devtools.evaluation.statistics import rows_of
    from graph_agent.session.history import EventReader, list_threads
    from graph_agent.session.trace import spans_of

    rows: list[InputRow] = []
    begun: list[str] = []
    unread: list[tuple[str, str]] = []
    async with open_sessions(address) as (saver, _):
        for session_id in await list_threads(saver):
            try:
                found = await EventReader(None, saver, session_id).read_tail(pending=True)
                events = found[1] if found is not None else []
                rows += rows_of(events, field)
                if events and spans_of(events)[-1].status == "RUNNING":
                    begun.append(session_id)
            # One damaged session must not hide the others.
            except GraphAgentError as error:
                unread.append((session_id, str(error)))
    return rows, begun, unread


def _lines(arms: list[Arm], by: str) -> list[str]:
    """Return the table of `report` as lines: groups of inputs, then the differences of each group from the first.

    Args:
        arms: The groups, not empty.
        by: The field that they are grouped by, the heading of the first column.
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
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
