"""Implements `trace`, which shows what a session did and when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import cell_len, set_cell_size

from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import printable
from graph_agent.base.origins import origin_text
from graph_agent.interfaces.cli import options, run_async
from graph_agent.interfaces.cli.terminal import Terminal
from graph_agent.interfaces.cli.texts import WIDTH, counted, one_line, seconds, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graph_agent.session.time_axis import TimeAxis
    from graph_agent.session.trace import Span

_LABEL, _TIME, _TOKENS, _COST = 27, 7, 10, 8
_OPEN = {"running": "…", "waiting": "…"}
_SIGNS = {"success": "✓", "answered": "✓", "error": "✗", "unknown": "?", "interrupted": "?", **_OPEN}


def trace(
    session: options.SessionArgument,
    config: options.ConfigOption = options.AGENT_FILE,
    db: options.DbOption = None,
    number: Annotated[
        int, typer.Option("--input", help="Only this input, from 1; -1 is the newest, 0 stands for all.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per input.")] = False,
) -> None:
    """Show what a session did and when: plans, model calls and calls, with durations, tokens and cost."""
    from graph_agent.session.trace import spans_of

    events, activity = run_async(options.stored_activity(options.database_url_of(config, db), session))
    roots = spans_of(events, is_interrupted=activity == "interrupted")
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
    """Return the lines of one input's trace, each at most 80 columns wide. Control characters become escapes.

    The lines are a heading, the totals, a row with a bar for each span (a plan, model call, tool call, delegation or
    wait), the notes, and an empty line.

    Args:
        root: The span of the input, with the spans of its plans as children.
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
    if (early := root.early).started:
        saved, wasted = seconds(early.saved_s), seconds(early.wasted_s)
        cost = f", cost {early.wasted_cost:.4f}" if early.wasted_cost else ""
        lines.append(f"  {early.used} of {early.started} early calls used: {saved} saved, {wasted} wasted{cost}")
    if axis.is_shortened:
        lines.append("  The axis shortens waits.")
    lines += [_cut(f"  {note.type}: {one_line(mask_named_secrets(note.text))}", WIDTH) for note in root.notes]
    return [*lines, ""]


def _span_rows(spans: Sequence[Span], indent: str, axis: TimeAxis, *, has_cost: bool) -> list[str]:
    """Return the rows of spans as a tree, each with the origins of its arguments and the rows of its children below it.

    The only model call of a plan or an answer has no row of its own.

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
        stem = indent + ("    " if last else "│   ")
        lines += [
            _cut(f"{stem}{path}: {one_line(origin_text(origin))}", WIDTH) for path, origin in span.origins.items()
        ]
        # A plan is as long as its model call, if there is only one that did not fail.
        inner = () if len(span.children) == 1 and span.children[0].kind == "model" else span.children
        lines += _span_rows(inner, indent + ("  " if last else "│ "), axis, has_cost=has_cost)
    return lines


def _row(span: Span, branch: str, axis: TimeAxis, *, has_cost: bool) -> str:
    """Return the row of a span: label, duration, tokens, and a bar that takes the rest of 80 columns.

    The tokens are left out if the input tokens are unknown or 0.

    Args:
        span: The span.
        branch: What precedes the label, e.g. `├ `.
        axis: Maps times to positions of the bar.
        has_cost: Whether the row has a column of the cost, before the bar; it is blank if the cost is unknown.
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
    """Return the text that names a span in its row.

    It is e.g. `plan 1 gpt-5`, `answer gpt-5`, `✓ search (needs list)` for a call, or `person: book` for a wait. A
    failed plan and a failed model call are followed by the error; a gap is `interrupted`, `retry`
    or `idle`.
    """
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
            return f"person: {span.name}" if span.name else span.status
        case _:
            needs = f" (needs {', '.join(span.needs)})" if span.needs else ""
            return f"{_SIGNS.get(span.status, '-')} {one_line(span.name)}{needs}"


def _bar(span: Span, axis: TimeAxis, width: int) -> str:
    """Return the bar of a span on `width` cells, after blanks up to its beginning.

    The bar is `░` while the call was queued, `▒` while it ran before its plan was complete, then `█`, or `┄` for a
    wait. A span that has not ended is only one sign: `▶` while it runs or waits, otherwise `▏`.

    Args:
        span: The span.
        axis: Maps times to positions from 0 to 1.
        width: Number of cells.
    """
    from datetime import timedelta

    begin, end = (min(width - 1, int(axis.at(at) * width)) for at in (span.start, span.end))
    # The span begins when the call was taken from the queue.
    queue = min(begin, max(0, int(axis.at(span.start - timedelta(seconds=span.queued_s)) * width)))
    if span.duration_s is None:
        mark = "▏" if span.status not in ("running", "waiting") else "▶"
        return " " * begin + mark
    fill = "┄" if span.kind == "wait" else "█"
    length = max(1, end - begin + (end == width - 1))
    early = round(length * min(1.0, span.early_s / span.duration_s)) if span.early_s else 0
    return " " * queue + "░" * (begin - queue) + "▒" * early + fill * (length - early)


def _cut(text: str, width: int) -> str:
    """Return a text that is at most `width` terminal columns wide, ending in `…` if it was cut.

    Control characters become escapes.
    """
    shown = printable(text)
    return shown if cell_len(shown) <= width else f"{set_cell_size(shown, width - 1).rstrip()}…"
