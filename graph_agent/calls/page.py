"""The text of one answer, with what is remembered about it while it is read."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple

from .call import MAX_DEPTH
from .extents import Extents
from .read_json import read_damaged
from .shapes import Reading
from .tolerant import Read
from .work import Work

# What ends a region that was opened before: a closing tag, a special token, a fence.
_REGION_END = re.compile(r"</[A-Za-z｜]|<[|｜]|```")


class ValueAt(NamedTuple):
    """A JSON value read from the page."""

    read: Read
    end: int
    """Index after it."""


class Page:
    """One text and the known tool names; every look-ahead on it is remembered, so that reading stays linear."""

    def __init__(self, text: str, tools: Set[str] | None) -> None:
        self.text = text
        self.tools = tools
        self.work = Work(len(text))
        self._extents = Extents(text, self.work)
        self._ahead: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}

    def next(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """Return the first match at or after ``start``; cheap when asked for growing ``start``."""
        asked, match = self._ahead.get(pattern, (-1, None))
        if asked < 0 or start < asked or (match is not None and match.start() < start):
            match = pattern.search(self.text, start)
            self._ahead[pattern] = (start, match)
        return match

    def reading(self, *, trusted: bool, delegate: bool = False, complete: bool = True) -> Reading:
        """Return how values are to be taken at a place of this page."""
        return Reading(self.tools, self.work, trusted=trusted, delegate=delegate, complete=complete)

    def bracket_end(self, start: int) -> int | None:
        """Return the index after the bracket that closes the one at ``start``; None when none does."""
        extent = self._extents.at(start)
        return extent.end if extent.closed else None

    def value_at(self, start: int, *, region: bool = False) -> ValueAt | None:
        """Read the JSON object or list whose bracket is at ``start``, however damaged; None when it cannot be read.

        In a ``region``, text is also tried up to the region's end, where an unclosed quote hid that end.
        """
        extent = self._extents.at(start)
        if extent.depth > MAX_DEPTH:
            return None
        read = self._read(start, extent.end)
        if read is not None:
            return ValueAt(read._replace(complete=read.complete and extent.closed), extent.end)
        stop = self.next(_REGION_END, start) if region else None
        if stop is None or stop.start() >= extent.end:
            return None
        read = self._read(start, stop.start())
        return None if read is None else ValueAt(read, stop.start())

    def region_end(self, start: int) -> int:
        """Return where the region that ``start`` is in ends: at a closing tag, a special token, a fence or the end."""
        stop = self.next(_REGION_END, start)
        return len(self.text) if stop is None else stop.start()

    def _read(self, start: int, end: int) -> Read | None:
        # The space says that a number at the end of a region is whole, unlike one at the end of the text.
        piece = self.text[start:end] + (" " if end < len(self.text) else "")
        return read_damaged(piece, self.work)
