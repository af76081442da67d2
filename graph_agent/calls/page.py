"""The text of one answer, with what is remembered about it while it is read."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple

from graph_agent.calls.call import MAX_DEPTH
from graph_agent.calls.extents import Extents
from graph_agent.calls.read_json import read_json, repair_json
from graph_agent.calls.shapes import ParseContext
from graph_agent.calls.tolerant import ParsedValue
from graph_agent.calls.work import WorkBudget

# What ends a region that was opened before: a closing tag, a special token, a fence.
_REGION_END = re.compile(r"</[A-Za-z｜]|<[|｜]|```")
# A value without one of these words cannot be a call, nor can anything in it.
_HINT = re.compile(r"name|tool|function|action|agent|delegate", re.IGNORECASE)
# Only what begins with a key is worth a guess: braces in prose are not.
_FIRST_KEY = re.compile(r"""(?:\[\s*+)?\{\s*+["'“]?[\w.-]++["'”]?\s*+:""")


class ValueAt(NamedTuple):
    """A JSON value read from the page."""

    read: ParsedValue
    end: int
    """Index after it."""


class Page:
    """One text and the known tool names; every look-ahead on it is remembered, so that reading stays linear."""

    def __init__(self, text: str, tools: Set[str] | None) -> None:
        self.text = text
        self.tools = tools
        self.work = WorkBudget(len(text))
        # Where the text begins and ends without the white space around it.
        self.whole = (len(text) - len(text.lstrip()), len(text.rstrip()))
        self._extents = Extents(text, self.work)
        self._ahead: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}

    def next(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """Return the first match at or after ``start``; cheap when asked for growing ``start``."""
        asked, match = self._ahead.get(pattern, (-1, None))
        if asked < 0 or start < asked or (match is not None and match.start() < start):
            match = pattern.search(self.text, start)
            self._ahead[pattern] = (start, match)
        return match

    def context(self, *, trusted: bool, delegate: bool = False, complete: bool = True) -> ParseContext:
        """Return how values are to be taken at a place of this page."""
        return ParseContext(self.tools, self.work, trusted=trusted, delegate=delegate, complete=complete)

    def bracket_end(self, start: int) -> int | None:
        """Return the index after the bracket that closes the one at ``start``; None when none does."""
        extent = self._extents.at(start)
        return extent.end if extent.closed else None

    def end_without_call(self, start: int) -> int | None:
        """Return where to go on after the bracket at ``start`` when nothing in it can be a call; None when it may."""
        hint = self.next(_HINT, start)
        if hint is None:
            return start + 1
        extent = self._extents.at(start)
        return None if hint.start() < extent.end else extent.end if extent.closed else start + 1

    def value_at(self, start: int, *, region: bool = False) -> ValueAt | None:
        """Read the JSON object or list whose bracket is at ``start``, however damaged; None when it cannot be read.

        In a ``region``, text is also tried up to the region's end, where an unclosed quote hid that end.
        """
        extent = self._extents.at(start)
        if extent.depth > MAX_DEPTH:
            return None
        ends = [extent.end]
        if not extent.closed and extent.last_close > start:
            # The closing bracket was forgotten and prose goes on.
            ends.append(extent.last_close)
        stop = self.next(_REGION_END, start) if region else None
        if stop is not None and stop.start() < extent.end:
            ends.append(stop.start())
        for read_by in (read_json, repair_json):
            if read_by is repair_json and not _FIRST_KEY.match(self.text, start):
                break
            for end in ends:
                read = read_by(self.text[start:end], self.work)
                if read is not None:
                    return ValueAt(read._replace(complete=read.complete and extent.closed), end)
        return None

    def region_end(self, start: int) -> int:
        """Return where the region that ``start`` is in ends: at a closing tag, a special token, a fence or the end."""
        stop = self.next(_REGION_END, start)
        return len(self.text) if stop is None else stop.start()
