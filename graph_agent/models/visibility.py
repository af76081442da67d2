"""Filters that decide which part of an incomplete reply may be shown."""

from __future__ import annotations

from graph_agent.calls.opening import CallOpening
from graph_agent.models.sentinel import visible_begin, visible_end


class SentinelFilter:
    """Shows a reply at once, except the sentinel."""

    def __init__(self) -> None:
        self._begin: int | None = None

    def part(self, text: str) -> tuple[int, int]:
        """See `Visibility`."""
        if self._begin is None:
            self._begin = visible_begin(text)
        if self._begin is None:
            return 0, 0
        return self._begin, max(self._begin, visible_end(text))


class CallFilter(SentinelFilter):
    """Shows a reply up to the first possible call in its text, except the sentinel."""

    def __init__(self) -> None:
        super().__init__()
        self._opening = CallOpening()
        self._end = 0

    def part(self, text: str) -> tuple[int, int]:
        """See `Visibility`."""
        begin, end = super().part(text)
        call = self._opening.before(text)
        self._end = max(self._end, begin, end if call >= end else len(text[:call].rstrip()))
        return begin, self._end


class LeadingCallFilter(CallFilter):
    """Shows a reply at once, except the sentinel, unless it starts with a possible call."""

    def part(self, text: str) -> tuple[int, int]:
        """See `Visibility`."""
        shown = super().part(text)
        return shown if self._is_call(text) else SentinelFilter.part(self, text)

    def _is_call(self, text: str) -> bool:
        return not text[: self._opening.before(text)].strip()
