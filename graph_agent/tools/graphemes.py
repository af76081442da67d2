"""Where a text can be cut without breaking what a reader sees as one character."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regex import Pattern

LOOK_AROUND = 128
"""Characters read on each side of a cut; a longer cluster, which no writing has, is cut where it is."""

_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_LONGEST_ROW_OF_FLAGS = 4096


def boundary_before(text: str, at: int) -> int:
    """The last place up to `at` that lies between two grapheme clusters; `at` itself inside an endless cluster.

    A cluster is a letter with its combining marks, an emoji sequence, a flag, a Hangul syllable, CR LF, and so on.

    Args:
        text: Any text; only the surroundings of `at` are read.
        at: A place from 0 to `len(text)`.
    """
    start, _ = _cluster_around(text, at)
    return at if start is None else start


def boundary_after(text: str, at: int) -> int:
    """The first place from `at` on that lies between two grapheme clusters; `at` itself inside an endless cluster.

    Args:
        text: Any text; only the surroundings of `at` are read.
        at: A place from 0 to `len(text)`.
    """
    _, end = _cluster_around(text, at)
    return at if end is None else end


def _cluster_around(text: str, at: int) -> tuple[int | None, int | None]:
    """Start and end of the cluster that `at` would cut, both `at` where it cuts none; None for what is out of reach."""
    if not 0 < at < len(text):
        return at, at
    sides = text[at - 1 : at + 1]
    if sides.isascii():
        return (at - 1, at + 1) if sides == "\r\n" else (at, at)
    first, last = _start_of_reading(text, at), min(len(text), at + LOOK_AROUND)
    for found in _cluster().finditer(text[first:last]):
        start, end = first + found.start(), first + found.end()
        if end == at:
            return at, at
        if end > at:
            # What touches the edge of what was read may go on beyond it.
            return (None if start == first > 0 else start), (None if end == last < len(text) else end)
    return at, at


def _start_of_reading(text: str, at: int) -> int:
    """Some way before `at`, and not in the middle of a row of flags: which letters make a pair depends on its start."""
    first = max(0, at - LOOK_AROUND)
    if text[first] not in _FLAG_LETTERS:
        return first
    before = text[max(0, first - _LONGEST_ROW_OF_FLAGS) : first]
    row = len(before) - len(before.rstrip(_FLAG_LETTERS))
    return first - row


@functools.cache
def _cluster() -> Pattern[str]:
    # Loaded at the first cut that needs it: most are between ASCII characters, and loading takes as long as a model's
    # whole first request is prepared in.
    import regex

    return regex.compile(r"\X")
