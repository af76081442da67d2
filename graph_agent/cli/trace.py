"""Implements `graph-agent trace`, which draws what a session did on a time axis."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import cell_len, set_cell_size

from graph_agent._internal.failure_log import mask_named_secrets
from graph_agent._internal.text import printable
from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption, SessionArgument
from graph_agent.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graph_agent.session.trace import Span, TimeAxis

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
    from graph_agent.agent_file.spec import load_spec

    roots = asyncio.run(_read(db or load_spec(config).db, session))
    if number:
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


async def _read(address: str, session_id: str) -> list[Span]:
    from graph_agent.cli.options import no_session, open_sessions
    from graph_agent.session.event_reader import EventReader
    from graph_agent.session.trace import spans_of

    async with open_sessions(address) as (saver, _):
        events = await EventReader(None, saver, session_id).read()
        if events is None:
            raise no_session(session_id, address)
        return spans_of(events)


def draw(root: Span, number: int) -> list[str]:
    """Return the lines of an input, each of 80 columns at most; control characters are kept.

    Args:
        number: Number of the input, from 1.
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
    lines += _rows(root.children, "", axis, has_cost=has_cost)
    if axis.is_shortened:
        lines.append("  The axis shortens waits for a person.")
    lines += [_cut(f"  {note.type}: {one_line(mask_named_secrets(note.text))}", WIDTH) for note in root.notes]
    return [*lines, ""]


def _rows(spans: Sequence[Span], indent: str, axis: TimeAxis, *, has_cost: bool) -> list[str]:
    lines: list[str] = []
    for span in spans:
        last = span is spans[-1]
        lines.append(_row(span, indent + ("└ " if last else "├ "), axis, has_cost=has_cost))
        # A plan is as long as its model call, if there is only one that did not fail.
        inner = () if len(span.children) == 1 and span.children[0].kind == "model" else span.children
        lines += _rows(inner, indent + ("  " if last else "│ "), axis, has_cost=has_cost)
    return lines


def _row(span: Span, branch: str, axis: TimeAxis, *, has_cost: bool) -> str:
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
    match span.kind:
        case "plan":
            model = f" {span.children[-1].name}" if span.children else ""
            return f"{f'plan {span.step}' if span.step else 'plan'}{model}{_failed(span)}"
        case "answer":
            return f"answer {span.children[-1].name}"
        case "model":
            return f"{span.name} {span.status}".rstrip()
        case "wait":
            return f"person: {span.name}"
        case _:
            return f"{_SIGNS.get(span.status, '-')} {one_line(span.name)}{_needs(span)}"


def _failed(span: Span) -> str:
    return f" {span.children[-1].status}" if span.status == "error" else ""


def _needs(span: Span) -> str:
    return f" (needs {', '.join(span.needs)})" if span.needs else ""


def _bar(span: Span, axis: TimeAxis, width: int) -> str:
    """Return the bar of a span: its queue, then the span itself, at least one cell."""
    from datetime import timedelta

    begin, end = (min(width - 1, int(axis.at(at) * width)) for at in (span.start, span.end))
    queue = min(begin, int(axis.at(span.start - timedelta(seconds=span.queued_s)) * width))
    if span.duration_s is None:
        mark = "▏" if span.status not in ("running", "waiting") else "▶"
        return " " * begin + mark
    fill = "┄" if span.kind == "wait" else "█"
    return " " * queue + "░" * (begin - queue) + fill * max(1, end - begin + (end == width - 1))


def _cut(text: str, width: int) -> str:
    shown = printable(text)
    return shown if cell_len(shown) <= width else f"{set_cell_size(shown, width - 1).rstrip()}…"


def one_line(text: str) -> str:
    """Return the beginning of a text, with its white space as single blanks."""
    return " ".join(text[: 10 * WIDTH].split())


def counted(count: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def short(count: int) -> str:
    """Return a number of tokens in at most five characters."""
    return f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"


def seconds(duration_s: float | None) -> str:
    """Return a duration in at most eight characters; an empty text if there is none."""
    if duration_s is None:
        return ""
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 100:
        return f"{duration_s:.1f} s"
    if duration_s < 6000:
        return f"{duration_s / 60:.1f} min"
    return f"{duration_s / 3600:.1f} h"
