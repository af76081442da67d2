"""Adds up from events what began before a plan asked for it: what it saved, and what was of no use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EarlyWork:
    """Calls, and requests for predicted plans, that began before a plan asked for them."""

    started: int = 0
    used: int = 0
    """Those whose results became results of a plan's calls, or whose plan was taken."""
    saved_s: float = 0.0
    """Seconds by which the last call of each plan ended earlier than if all had begun with the plan."""
    wasted_s: float = 0.0
    """Seconds that those of no use ran, added up."""
    wasted_cost: float = 0.0
    """Cost of the requests of no use, in the currency of the prices."""

    @property
    def hit_rate(self) -> float:
        """Share of those used; 0.0 if none began."""
        return self.used / self.started if self.started else 0.0

    def __add__(self, other: EarlyWork) -> EarlyWork:
        theirs = asdict(other)
        return EarlyWork(**{name: value + theirs[name] for name, value in asdict(self).items()})

    def as_json(self) -> dict[str, float]:
        """Return the numbers and the hit rate, rounded to six digits after the point."""
        return {name: round(value, 6) for name, value in {**asdict(self), "hit_rate": self.hit_rate}.items()}


NO_EARLY_WORK = EarlyWork()


def early_work_of(events: Iterable[Mapping[str, Any]]) -> EarlyWork:
    """Return the sums over the events of a session, or of one of its inputs; all are 0 without early work.

    `saved_s` is the sum over all plans of how much earlier the last call of the plan ended than it would have without
    early work; the others are sums of the counts that events have under `early`.
    """
    started = used = 0
    saved_s = wasted_s = cost = 0.0
    ends: list[tuple[float, float]] = []
    """Of each call of the newest plan, the seconds to its end: without early work, and with it."""
    for entry in events:
        # All calls of a plan have ended when the next one is made.
        if entry["type"] in ("user_message", "plan"):
            saved_s += _saved_s(ends)
            ends = []
        elif "duration_s" in entry and "id" in entry:
            took_s = entry.get("queued_s", 0.0) + entry["duration_s"]
            ends.append((took_s + entry.get("early_s", 0.0), took_s))
        for counts in entry.get("early", {}).values():
            started, used = started + counts.get("started", 0), used + counts.get("used", 0)
            wasted_s, cost = wasted_s + counts.get("dropped_s", 0.0), cost + counts.get("cost", 0.0)
    return EarlyWork(started, used, saved_s + _saved_s(ends), wasted_s, cost)


def _saved_s(ends: list[tuple[float, float]]) -> float:
    """Return by how many seconds the last of some calls ended earlier through early work; 0.0 without calls.

    `ends` are the seconds to the end of each call: without early work, and with it.
    """
    # The last call decides when a wave ends, so that time saved by another one does not count.
    return max(0.0, max(without for without, _ in ends) - max(took for _, took in ends)) if ends else 0.0
