"""Cutting a tool's output to what a model should read: characters first, then lines, with a visible marker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from graph_agent.graphemes import boundary_after, boundary_before

TruncateMode = Literal["head_tail", "tail"]


class Shown(NamedTuple):
    """An output as the model sees it."""

    text: str
    truncated: bool


def truncate(
    text: str,
    *,
    max_chars: int,
    max_lines: int,
    mode: TruncateMode = "head_tail",
    hint: Callable[[int], str] | None = None,
) -> Shown:
    """Cut `text` to at most `max_chars` characters and `max_lines` lines, the marker's own line not counted.

    No grapheme cluster is cut in two (see `graphemes`). The work is linear in the limits, so a huge output costs no
    more than a large one; that is why the marker tells exactly how many lines are missing only where the limit of
    characters would have let them in, and otherwise how many are known to be.

    Args:
        text: The whole output. A newline at its end begins no further line.
        max_chars: Characters kept at most.
        max_lines: Lines kept at most, the parts of lines at a cut included.
        mode: `head_tail` keeps both ends in halves, `tail` the end alone.
        hint: Says how to read on from an offset, in characters; it becomes part of the marker.
    """
    length = len(text)
    too_long = length > max_chars
    if not too_long and text.count("\n") - text.endswith("\n") < max_lines:
        return Shown(text, truncated=False)
    head_chars, head_lines = (max_chars // 2, max_lines // 2) if mode == "head_tail" else (0, 0)
    if too_long:
        head_limit = boundary_before(text, head_chars)
        tail_limit = boundary_after(text, length - (max_chars - head_chars))
    else:
        head_limit, tail_limit = length, 0
    head_end = _end_of_first_lines(text, head_lines, head_limit)
    tail_start = _start_of_last_lines(text, max_lines - head_lines, tail_limit)
    if too_long:
        lines = text.count("\n", head_end, head_limit) + text.count("\n", tail_limit, tail_start)
    else:
        lines = text.count("\n", head_end, tail_start)
    marker = _marker(tail_start - head_end, lines, hint(head_end) if hint else "", exact=not too_long)
    parts = [text[:head_end].removesuffix("\n"), marker, text[tail_start:].removeprefix("\n")]
    return Shown("\n".join(part for part in parts if part), truncated=True)


def _marker(characters: int, lines: int, hint: str, *, exact: bool) -> str:
    missing = f"{characters:,} character{'s' * (characters != 1)}"
    if lines:
        missing += f" in {'' if exact else 'at least '}{lines:,} line{'s' * (lines != 1)}"
    return f"[… {missing} left out here; the history keeps the whole output{hint and '; '}{hint} …]"


def _end_of_first_lines(text: str, lines: int, limit: int) -> int:
    """Where the first `lines` lines end, `limit` at most."""
    end = 0
    for _ in range(lines):
        newline = text.find("\n", end, limit)
        if newline < 0:
            return limit
        end = newline + 1
    return end


def _start_of_last_lines(text: str, lines: int, limit: int) -> int:
    """Where the last `lines` lines begin, `limit` at least."""
    start = len(text) - text.endswith("\n")
    for _ in range(lines):
        newline = text.rfind("\n", limit, start)
        if newline < 0:
            return limit
        start = newline
    return start + 1
