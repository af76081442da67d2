"""Cutting a tool's output to what a model should read: characters first, then lines, with a visible marker."""

from __future__ import annotations

from typing import Literal, NamedTuple

TruncateMode = Literal["head_tail", "tail"]


class Shown(NamedTuple):
    """An output as the model sees it."""

    text: str
    truncated: bool


def truncate(text: str, *, max_chars: int, max_lines: int, mode: TruncateMode = "head_tail") -> Shown:
    """Cut `text` to at most `max_chars` characters and `max_lines` lines, the marker's own line not counted.

    The work is linear in what is kept, so a huge output costs no more than a large one.

    Args:
        text: The whole output.
        max_chars: Characters kept at most.
        max_lines: Lines kept at most.
        mode: `head_tail` keeps both ends in halves, `tail` the end alone.
    """
    head_chars, head_lines = (max_chars // 2, max_lines // 2) if mode == "head_tail" else (0, 0)
    head_end, tail_start = len(text), len(text)
    if len(text) > max_chars:
        head_end, tail_start = head_chars, len(text) - (max_chars - head_chars)
    elif text.count("\n") < max_lines:
        return Shown(text, truncated=False)
    else:
        tail_start = 0
    head_end = _end_of_first_lines(text, head_lines, head_end)
    tail_start = _start_of_last_lines(text, max_lines - head_lines, tail_start)
    if tail_start <= head_end:
        return Shown(text, truncated=False)
    marker = f"[… {tail_start - head_end:,} characters left out here; the history keeps the whole output …]"
    parts = [text[:head_end].removesuffix("\n"), marker, text[tail_start:].removeprefix("\n")]
    return Shown("\n".join(part for part in parts if part), truncated=True)


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
    start = len(text)
    for _ in range(lines):
        newline = text.rfind("\n", limit, start)
        if newline < 0:
            return limit
        start = newline
    return start + 1
