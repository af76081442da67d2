"""Finds the gaps between the recorded work of an input, and maps its times to positions on an axis.

The page applies the same rule to gaps (`gapsWithin` in `web/static/layout.js`); one table of cases tests both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

Interval: TypeAlias = tuple[datetime, datetime]
"""Begin and end."""
_SHORTEST = timedelta(seconds=2)
"""A shorter gap is not shown, unless it ends with a resume."""


class Gap(NamedTuple):
    """A part of an input in which no work is recorded."""

    start: datetime
    end: datetime
    kind: Literal["interrupted", "retry", "idle"]
    """`interrupted` until a run resumed the input, `retry` after a failed request to a model, until it was sent again;
    `idle` if the cause is not recorded."""


def gaps_of(
    work: Iterable[Interval],
    begin: datetime,
    end: datetime,
    resumes: Collection[datetime],
    failures: Collection[datetime],
) -> Iterator[Gap]:
    """Yield the gaps of an input, in order.

    A gap that ends with a resume is `interrupted`, however short. Any other gap of at least `_SHORTEST` is `retry` if
    it begins at the time of a failure, else `idle`.

    Args:
        work: Model calls, calls, and waits for a person.
        begin: Begin of the input.
        end: End of the input, or of its newest work.
        resumes: Times at which runs resumed the input.
        failures: Times at which requests to a model failed.
    """
    last = begin
    for start, ended in [*sorted(work), (end, end)]:
        resumed = next((at for at in sorted(resumes) if last < at <= start), None)
        if resumed is not None:
            yield Gap(last, resumed, "interrupted")
            last = resumed
        if start - last >= _SHORTEST:
            yield Gap(last, start, "retry" if last in failures else "idle")
        last = max(last, ended)


class TimeAxis:
    """Maps times from `start` to `end` to positions from 0 to 1.

    A wait is shown with at most a quarter of the length of the work.

    Args:
        start: Begin of the axis.
        end: End of the axis.
        waits: Begin and end of each wait; they may overlap.
    """

    def __init__(self, start: datetime, end: datetime, waits: Iterable[Interval] = ()) -> None:
        self._start = start
        intervals: list[tuple[float, float]] = []
        for wait in sorted(waits):
            begin, ended = (max(0.0, (at - start).total_seconds()) for at in wait)
            if intervals and begin <= intervals[-1][1]:
                intervals[-1] = intervals[-1][0], max(ended, intervals[-1][1])
            else:
                intervals.append((begin, ended))
        total = max(0.0, (end - start).total_seconds())
        # A wait of days would otherwise leave no room for the work.
        most = (total - sum(ended - begin for begin, ended in intervals)) / 4
        self._cuts = [(begin, ended, most) for begin, ended in intervals if ended - begin > most]
        self._length = 0.0
        self._length = self._shown_s(end) or 1.0

    @property
    def is_shortened(self) -> bool:
        """Whether any wait is shown shorter than it was."""
        return bool(self._cuts)

    def at(self, time: datetime) -> float:
        """Return the position of a time: 0 at the start and before it, 1 at the end and after it."""
        return min(1.0, max(0.0, self._shown_s(time) / self._length))

    def _shown_s(self, time: datetime) -> float:
        """Return the seconds from the start to a time, minus what was cut off from waits."""
        seconds = shown = (time - self._start).total_seconds()
        for begin, ended, most in self._cuts:
            if seconds <= begin:
                break
            within = min(seconds, ended) - begin
            shown -= within - within / (ended - begin) * most
        return shown
