"""Filters that decide which part of an incomplete reply may be shown."""

from __future__ import annotations

from graph_agent.calls.opening import CallOpening, may_begin_with_call
from graph_agent.models.sentinel import after_reasoning, visible_begin, visible_end


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


class AnswerFilter(SentinelFilter):
    """Shows an answer at once, except the sentinel, unless it starts with a possible call or plan after its reasoning.

    Args:
        prefix: A fixed beginning of the reply, which is shown at once.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix
        self._is_answer = False

    def part(self, text: str) -> tuple[int, int]:
        """See `Visibility`."""
        prefix = len(self._prefix)
        begin, end = super().part(text[prefix:])
        if not self._is_answer:
            self._is_answer = end > begin and not may_begin_with_call(after_reasoning(text[prefix + begin :]))
        # What is shown is one piece: text behind a removed line cannot follow the prefix.
        if not self._is_answer or (prefix and text[prefix : prefix + begin].strip()):
            return (0, min(prefix, len(text))) if prefix else (begin, begin)
        return (0, prefix + end) if prefix else (begin, end)
