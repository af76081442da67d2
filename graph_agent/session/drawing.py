"""Draws what a session did on a time axis, as SVG for a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graph_agent._internal.failure_log import mask_named_secrets
from graph_agent._internal.svg import document, text
from graph_agent._internal.text import printable
from graph_agent.session.trace import Span, TimeAxis, axis_of

_WIDTH, _LABEL, _TIME, _ROW = 760, 216, 64, 20
_LABEL_CHARS, _TITLE_CHARS = 34, 96
_MOST_INPUTS = 20
_FAILED = ("error", "unknown")


def session_svg(roots: Sequence[Span]) -> str:
    """Return the newest inputs of a session, at most 20, each on a time axis of its own; calls above each other ran in
    parallel.

    Args:
        roots: The spans of the inputs, oldest first.
    """
    y, parts = 12, []
    if not roots:
        return document(_WIDTH, 34, "Session", [text(14, 22, "No input yet.", "note")])
    for number, root in list(enumerate(roots, 1))[-_MOST_INPUTS:]:
        y += 14
        parts.append(text(14, y, _cut(f"{number}: {root.name}", _TITLE_CHARS)))
        y += 16
        parts.append(text(14, y, _facts(root), "note"))
        axis = axis_of(root)
        for depth, span in _rows(root.children):
            y += _ROW
            parts += _row(span, depth, y, axis)
        y += 12
    return document(_WIDTH, y, "What the session did, on a time axis", parts)


def _rows(spans: Sequence[Span], depth: int = 0) -> Iterator[tuple[int, Span]]:
    for span in spans:
        yield depth, span
        # A plan is as long as its model call, if there is only one.
        if not (len(span.children) == 1 and span.children[0].kind == "model"):
            yield from _rows(span.children, depth + 1)


def _row(span: Span, depth: int, y: int, axis: TimeAxis) -> list[str]:
    room = _WIDTH - _LABEL - _TIME - 28
    begin, end = axis.at(span.start), axis.at(span.end)
    x, width = 14 + _LABEL + begin * room, max(2.0, (end - begin) * room)
    kind: str = "model" if span.kind in ("plan", "answer") else span.kind
    if span.status in _FAILED:
        kind = "error"
    label = _cut("   " * depth + _label(span), _LABEL_CHARS)
    bar = f'<rect class="{kind}" x="{x:g}" y="{y - 9}" width="{width:g}" height="11" rx="2"/>'
    return [text(14, y, label), bar, text(_WIDTH - 14, y, _seconds(span.duration_s), "note", "end")]


def _label(span: Span) -> str:
    if span.kind == "wait":
        return f"person: {span.name}"
    if span.kind in ("plan", "answer"):
        model = span.children[-1].name if span.children else span.name
        return f"plan {span.step} {model}" if span.kind == "plan" else f"answer {model}"
    sign = {"success": "", "answered": "", "error": "✗ ", "unknown": "? "}.get(span.status, "– ")
    return f"{sign}{span.name}" if span.kind in ("tool", "delegation") else span.name


def _facts(root: Span) -> str:
    tokens = f"{root.input_tokens:,} + {root.output_tokens:,} tokens" if root.input_tokens else ""
    cost = f"cost {root.cost:.4f}" if root.cost is not None else ""
    return ", ".join(filter(None, [root.status, _seconds(root.duration_s) or "not ended", tokens, cost]))


def _seconds(duration_s: float | None) -> str:
    if duration_s is None:
        return ""
    return f"{duration_s * 1000:.0f} ms" if duration_s < 1 else f"{duration_s:,.1f} s"


def _cut(content: str, most: int) -> str:
    # Printable text has no line breaks; leading blanks are the depth.
    shown = printable(mask_named_secrets(content.replace("\n", " ")[: 10 * most])).replace(" ", "\u00a0")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
