"""Truncation of tool output: characters first, then lines, with a visible marker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

TruncateMode = Literal["head_tail", "tail"]


class TruncatedText(NamedTuple):
    """A text after truncation, and whether anything was removed."""

    text: str
    truncated: bool


class _Cut(NamedTuple):
    """The boundary of the kept head or tail."""

    piece: int
    """Index of the text."""
    at: int
    """Offset in that text."""
    lines: int
    """Lines within the character limit that the line limit removed."""


def truncate(
    text: str,
    *,
    max_chars: int,
    max_lines: int,
    mode: TruncateMode = "head_tail",
    hint: Callable[[int], str] | None = None,
) -> TruncatedText:
    """Truncate one text; see `truncate_texts`."""
    kept = truncate_texts([text], max_chars=max_chars, max_lines=max_lines, mode=mode, hint=hint)
    return TruncatedText(text, truncated=False) if kept is None else TruncatedText(kept[0] or "", truncated=True)


def truncate_texts(
    texts: Sequence[str],
    *,
    max_chars: int,
    max_lines: int,
    mode: TruncateMode = "head_tail",
    hint: Callable[[int], str] | None = None,
) -> list[str | None] | None:
    """Truncate an output to `max_chars` characters and `max_lines` lines, not counting the marker's line.

    Text is cut between code points. The work is linear in the limits and the number of texts, not in the output's size.
    Therefore the marker's line count is exact only if the character limit is not exceeded; otherwise it is a minimum.

    Args:
        texts: The whole output, in one or more pieces. A newline at the end of a piece does not start another line.
        max_chars: Maximum characters kept.
        max_lines: Maximum lines kept, including partial lines at a cut.
        mode: `head_tail` keeps half of the limits at each end, `tail` only the end.
        hint: Returns the marker's hint for an offset, in characters from the start of the first piece.

    Returns:
        The rest of each piece, None for a piece without any; None instead of the list if nothing is cut.
    """
    size = sum(map(len, texts))
    too_long = size > max_chars
    lines = 0 if too_long else sum(map(_lines, texts))
    if not too_long and lines <= max_lines:
        return None
    head_chars, head_lines = (max_chars // 2, max_lines // 2) if mode == "head_tail" else (0, 0)
    tail_chars = max_chars - head_chars
    if not too_long:
        # Only the line limit applies.
        head_chars = tail_chars = size
    head = _end_of_head(texts, head_chars, head_lines)
    tail = _start_of_tail(texts, tail_chars, max_lines - head_lines)
    before = sum(map(len, texts[: head.piece])) + head.at
    after = sum(map(len, texts[tail.piece :])) - tail.at
    missing_lines = head.lines + tail.lines if too_long else lines - max_lines
    marker = _marker(size - before - after, missing_lines, hint(before) if hint else "", exact=not too_long)
    kept: list[str | None] = [None] * len(texts)
    kept[: head.piece] = texts[: head.piece]
    kept[tail.piece + 1 :] = texts[tail.piece + 1 :]
    first, last = texts[head.piece][: head.at].removesuffix("\n"), texts[tail.piece][tail.at :].removeprefix("\n")
    if head.piece == tail.piece:
        kept[head.piece] = "\n".join(part for part in (first, marker, last) if part)
    else:
        kept[head.piece] = "\n".join(part for part in (first, marker) if part)
        kept[tail.piece] = last or None
    return kept


def _marker(characters: int, lines: int, hint: str, *, exact: bool) -> str:
    missing = f"{characters:,} character{'s' * (characters != 1)}"
    if lines:
        missing += f" in {'' if exact else 'at least '}{lines:,} line{'s' * (lines != 1)}"
    return f"[… {missing} left out here; the history keeps the whole output{hint and '; '}{hint} …]"


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def _end_of_head(texts: Sequence[str], chars: int, lines: int) -> _Cut:
    index = 0
    while len(texts[index]) <= chars and (own := _lines(texts[index])) <= lines:
        chars, lines, index = chars - len(texts[index]), lines - own, index + 1
    text = texts[index]
    limit = min(chars, len(text))
    end = _end_of_first_lines(text, lines, limit)
    return _Cut(index, end, text.count("\n", end, limit))


def _start_of_tail(texts: Sequence[str], chars: int, lines: int) -> _Cut:
    index = len(texts) - 1
    while len(texts[index]) <= chars and (own := _lines(texts[index])) <= lines:
        chars, lines, index = chars - len(texts[index]), lines - own, index - 1
    text = texts[index]
    limit = max(0, len(text) - chars)
    start = _start_of_last_lines(text, lines, limit)
    return _Cut(index, start, text.count("\n", limit, start))


def _end_of_first_lines(text: str, lines: int, limit: int) -> int:
    """Return the offset at which the first `lines` lines end; at most `limit`."""
    end = 0
    for _ in range(lines):
        newline = text.find("\n", end, limit)
        if newline < 0:
            return limit
        end = newline + 1
    return end


def _start_of_last_lines(text: str, lines: int, limit: int) -> int:
    """Return the offset at which the last `lines` lines start; at least `limit`."""
    if lines == 0:
        return len(text)
    start = len(text) - text.endswith("\n")
    for _ in range(lines):
        newline = text.rfind("\n", limit, start)
        if newline < 0:
            return limit
        start = newline
    return start + 1
