"""Compares groups of the inputs of a database, such as the arms of the planner's rollout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from graph_agent.evaluation.statistics import Estimate, difference, mean, pass_rate, rate_difference
from graph_agent.session.trace import inputs_of, spans_of

MEASURES = ("steps", "tokens", "cost", "seconds")
_ABSENT = "(none)"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input of a session that has ended."""

    arm: str
    """Value of the field that the inputs are grouped by; `(none)` without one."""
    at: datetime
    """Its begin."""
    succeeded: bool
    """Whether its status is `COMPLETED`."""
    steps: float
    """Plans with calls, which are the waves run."""
    tokens: float
    """Tokens of requests and replies, those of delegates included."""
    cost: float | None
    """Cost in the currency of the price table; None without prices."""
    seconds: float
    """Seconds from its begin to its end, without waits for a person."""


def rows_of(events: Iterable[Mapping[str, Any]], field: str) -> Iterator[InputRow]:
    """Yield the ended inputs of a session, oldest first.

    Args:
        events: The session's events, from the beginning of an input on.
        field: `model`, or a field of events, such as `planner`; the first event of the input that has it counts.
    """
    for own in inputs_of(events):
        (span,) = spans_of(own)
        if span.status == "RUNNING" or span.duration_s is None:
            continue
        waits = sum(each.duration_s or 0.0 for each in span.children if each.kind == "wait")
        plans = [entry for entry in own if entry["type"] == "plan"]
        yield InputRow(
            arm=_value(own, field),
            at=span.start,
            succeeded=span.status == "COMPLETED",
            steps=sum(bool(plan["calls"]) for plan in plans),
            tokens=span.input_tokens + span.output_tokens,
            cost=span.cost,
            seconds=max(0.0, span.duration_s - waits),
        )


def _value(events: Sequence[Mapping[str, Any]], field: str) -> str:
    for entry in events:
        if field == "model" and entry.get("model_calls"):
            return str(entry["model_calls"][0]["model"])
        if field in entry:
            return str(entry[field])
    return _ABSENT


@dataclass(frozen=True, slots=True)
class Arm:
    """The inputs with one value of the field."""

    name: str
    rows: tuple[InputRow, ...]
    """At least one."""

    @property
    def success(self) -> Estimate:
        """The share of inputs that completed."""
        return pass_rate(sum(row.succeeded for row in self.rows), len(self.rows))

    def values(self, measure: str) -> list[float]:
        """Return the values of a measure; those of inputs without one are left out."""
        return [value for row in self.rows if (value := getattr(row, measure)) is not None]

    def estimates(self) -> dict[str, Estimate]:
        """Return the success rate and the mean of each measure that has values."""
        means = {name: mean(values) for name in MEASURES if (values := self.values(name))}
        return {"success": self.success, **means}

    def minus(self, other: Arm) -> dict[str, Estimate]:
        """Return the differences of the success rate and of the means from those of another arm."""
        counts = [(sum(row.succeeded for row in arm.rows), len(arm.rows)) for arm in (other, self)]
        found = {"success": rate_difference(*counts)}
        for name in MEASURES:
            theirs, own = other.values(name), self.values(name)
            if theirs and own:
                found[name] = difference(theirs, own)
        return found

    def as_json(self, first: Arm | None) -> dict[str, Any]:
        """Return the arm as plain JSON.

        Args:
            first: The arm to compare with; None for no comparison.
        """
        estimates = {name: each.as_json() for name, each in self.estimates().items()}
        seconds = sorted(self.values("seconds"))
        estimates["seconds"]["p95"] = round(seconds[min(len(seconds) - 1, int(len(seconds) * 0.95))], 6)
        found = {"arm": self.name, "inputs": len(self.rows), **estimates}
        if first is not None:
            found["minus_first"] = {name: each.as_json() for name, each in self.minus(first).items()}
        return found


def arms_of(rows: Iterable[InputRow]) -> list[Arm]:
    """Return the arms, the one with the most inputs first."""
    grouped: dict[str, list[InputRow]] = {}
    for row in rows:
        grouped.setdefault(row.arm, []).append(row)
    arms = [Arm(name, tuple(own)) for name, own in grouped.items()]
    return sorted(arms, key=lambda arm: (-len(arm.rows), arm.name))
