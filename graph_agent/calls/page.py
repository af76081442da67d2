"""The text of one answer with cached lookups for its parser."""

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

# Ends an open region: a closing tag, a special token, a fence.
_REGION_END = re.compile(r"</[A-Za-z｜]|<[|｜]|```")
# A value without one of these words is not a call and contains none.
_HINT = re.compile(r"name|tool|function|action|agent|delegate", re.IGNORECASE)
# Only text that starts with a key is worth a repair: braces in prose are not.
_FIRST_KEY = re.compile(r"""(?:\[\s*+)?\{\s*+["'“]?[\w.-]++["'”]?\s*+:""")


class ValueAt(NamedTuple):
    """A JSON value parsed from the page."""

    read: ParsedValue
    end: int
    """Index after it."""


class Page:
    """One text and the known tool names; caches every look-ahead, so that parsing stays linear."""

    def __init__(self, text: str, tools: Set[str] | None) -> None:
        self.text = text
        self.tools = tools
        self.work = WorkBudget(len(text))
        # Start and end of the text without surrounding white space.
        self.whole = (len(text) - len(text.lstrip()), len(text.rstrip()))
        self.unclosed_at = self.partial_at = -1
        """Start of the last region that ends unclosed with the text, and of the last that ends inside a value."""
        self._extents = Extents(text, self.work)
        self._ahead: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}

    def next(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """Return the first match at or after ``start``; cheap if successive calls have growing ``start``."""
        asked, match = self._ahead.get(pattern, (-1, None))
        if asked < 0 or start < asked or (match is not None and match.start() < start):
            match = pattern.search(self.text, start)
            self._ahead[pattern] = (start, match)
        return match

    def context(self, *, trusted: bool, delegate: bool = False, complete: bool = True) -> ParseContext:
        """Return the context in which a value at some place of this page is parsed."""
        return ParseContext(self.tools, self.work, trusted=trusted, delegate=delegate, complete=complete)

    def bracket_end(self, start: int) -> int | None:
        """Return the index after the bracket that closes the one at ``start``; None if unclosed."""
        extent = self._extents.at(start)
        return extent.end if extent.closed else None

    def end_without_call(self, start: int) -> int | None:
        """Return the index to continue from if the bracket at ``start`` cannot hold a call; None if it may."""
        hint = self.next(_HINT, start)
        if hint is None:
            return start + 1
        extent = self._extents.at(start)
        return None if hint.start() < extent.end else extent.end if extent.closed else start + 1

    def value_at(self, start: int, *, region: bool = False) -> ValueAt | None:
        """Parse the JSON object or list at ``start``, even if damaged; None if it cannot be parsed.

        In a ``region``, also try the text up to the region's end, in case an unclosed quote hid that end.
        """
        extent = self._extents.at(start)
        if extent.depth > MAX_DEPTH:
            return None
        ends = [extent.end]
        if not extent.closed and extent.last_close > start:
            # The closing bracket is missing and prose follows.
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
                    if not extent.closed:
                        # A comma before the rest: it is a member that cannot be parsed, not prose.
                        left_out = end < extent.end and self.text[end : extent.end].lstrip().startswith(",")
                        self.note_unclosed(start, extent.end if left_out else end, partial=read.partial or left_out)
                    return ValueAt(read._replace(complete=read.complete and extent.closed), end)
        return None

    def note_unclosed(self, start: int, end: int, *, partial: bool) -> None:
        """Record that the region from ``start`` to ``end`` is unclosed, if the text ends with it."""
        if end >= self.whole[1]:
            self.unclosed_at = start
            self.partial_at = start if partial else self.partial_at

    def region_end(self, start: int) -> int:
        """Return the end of the region around ``start``: a closing tag, a special token, a fence or the text's end."""
        stop = self.next(_REGION_END, start)
        return len(self.text) if stop is None else stop.start()
