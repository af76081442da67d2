"""Formats texts, numbers and durations for the lines of a terminal."""

from __future__ import annotations

WIDTH = 80
"""Columns of a trace."""


def one_line(text: str) -> str:
    """Return the first 800 characters of a text on one line: each run of white space becomes one blank, and the ends
    are stripped.
    """
    return " ".join(text[: 10 * WIDTH].split())


def counted(count: int, what: str) -> str:
    """Return a number with its noun, which gets an `s` unless the number is 1, e.g. `1 call` or `1,200 calls`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def short(count: int) -> str:
    """Return a number of tokens in short form: the number itself below 10,000, then thousands such as `12k`."""
    return f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"


def seconds(duration_s: float | None) -> str:
    """Return a duration, e.g. `120 ms`, `1.5 s`, `2.0 min` or `1.5 h`; an empty text for None.

    Seconds are used up to 100 s, minutes up to 100 min.
    """
    if duration_s is None:
        return ""
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 100:
        return f"{duration_s:.1f} s"
    if duration_s < 6000:
        return f"{duration_s / 60:.1f} min"
    return f"{duration_s / 3600:.1f} h"
