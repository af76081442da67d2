"""Estimates pass rates and paired differences with intervals, and compares groups of a database's inputs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import comb, hypot, sqrt
from statistics import NormalDist, fmean, stdev, variance
from typing import Any

from graph_agent.session.trace import inputs_of, spans_of

CONFIDENCE = 0.95
"""Share of intervals that cover the true value."""
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_MOST_RESAMPLED = 200
"""Values of which a bootstrap takes less than half a second."""
_RESAMPLES = 4000
_SEED = 20_261_123
"""Fixed, so that the same runs have the same interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval of 95 %."""

    value: float
    low: float | None = None
    """None if there are too few values for an interval."""
    high: float | None = None

    def text(self, form: str) -> str:
        """Return the value in a format, and its interval if it has one."""
        value, interval = format(self.value, form), ""
        if self.low is not None and self.high is not None:
            interval = f" ({format(self.low, form)} to {format(self.high, form)})"
        return value + interval

    def as_json(self) -> dict[str, float | None]:
        """Return the estimate as plain JSON, rounded to six digits after the point."""
        given = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if value is None else round(value, 6) for name, value in given.items()}


def pass_rate(passed: int, runs: int) -> Estimate:
    """Return the share of at least one run that passed, with Wilson's interval for independent runs."""
    return Estimate(*_wilson(passed, runs))


def _wilson(passed: int, runs: int) -> tuple[float, float, float]:
    """Return a share, and the ends of its interval."""
    share = passed / runs
    centre = share + _Z * _Z / (2 * runs)
    half = _Z * sqrt(share * (1 - share) / runs + _Z * _Z / (4 * runs * runs))
    scale = 1 + _Z * _Z / runs
    return share, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def pass_hat(passed: Sequence[int], runs: int, k: int) -> float:
    """Return pass^k: the probability that k runs of a case all pass, averaged over the cases.

    The estimate is unbiased: of the k-subsets of a case's runs, it is the share that has no failed run. `passed` has
    the number for each case; k is from 1 to `runs`.
    """
    return fmean(comb(each, k) / comb(runs, k) for each in passed)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of second minus first, with the percentile interval of a bootstrap over the pairs.

    Both have one value for each of the same cases; at least one.
    """
    differences = [after - before for before, after in zip(first, second, strict=True)]
    return mean(differences)


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean of values; at least one.

    Its interval is the percentile interval of a bootstrap; of more than 200 values, that of the normal distribution.
    """
    if len(values) < 2:
        return Estimate(fmean(values))
    if len(values) > _MOST_RESAMPLED:
        half = _Z * stdev(values) / sqrt(len(values))
        return Estimate(fmean(values), fmean(values) - half, fmean(values) + half)
    choose = random.Random(_SEED).choices
    means = sorted(fmean(choose(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = round(_RESAMPLES * (1 - CONFIDENCE) / 2)
    return Estimate(fmean(values), means[cut], means[-1 - cut])


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of the second values minus that of the first, at least one each, of different inputs."""
    value = fmean(second) - fmean(first)
    if min(len(first), len(second)) < 2:
        return Estimate(value)
    half = _Z * sqrt(variance(first) / len(first) + variance(second) / len(second))
    return Estimate(value, value - half, value + half)


def rate_difference(first: tuple[int, int], second: tuple[int, int]) -> Estimate:
    """Return the second rate minus the first, with Newcombe's interval, which joins the intervals of Wilson.

    Both are successes and trials.
    """
    (one, low, high), (other, other_low, other_high) = (_wilson(*counts) for counts in (first, second))
    value = other - one
    return Estimate(value, value - hypot(other - other_low, high - one), value + hypot(other_high - other, one - low))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, from the cases that only one of two agents passed."""
    pairs = only_first + only_second
    tail = sum(comb(pairs, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / float(2**pairs))


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
    """Yield the ended inputs of a session, oldest first, from events since the beginning of an input.

    `field` is `model`, or a field of events, such as `planner`; the first event of the input that has it counts.
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
        """Return the arm, compared with the first one unless that is None, as plain JSON."""
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
