"""Estimates pass rates and paired differences with intervals, and compares groups of a database's inputs.

An arm is a group of inputs with the same value of a field, such as the same model. An input is one message of a user
with everything up to its answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import comb, hypot, sqrt
from statistics import NormalDist, fmean, stdev, variance
from typing import Any

from graph_agent.base._internal.text import version_of
from graph_agent.session.early_work import NO_EARLY_WORK, EarlyWork
from graph_agent.session.history import newest_feedback
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
    """A value with its interval at the confidence `CONFIDENCE`."""

    value: float
    low: float | None = None
    """None if there are too few values for an interval."""
    high: float | None = None

    def text(self, form: str) -> str:
        """Return the value in a format such as `.1%`, and its interval in parentheses: `62.5% (40.0% to 81.2%)`."""
        value, interval = format(self.value, form), ""
        if self.low is not None and self.high is not None:
            interval = f" ({format(self.low, form)} to {format(self.high, form)})"
        return value + interval

    def as_json(self) -> dict[str, float | None]:
        """Return `{"value", "low", "high"}`, rounded to six digits after the point; None for a bound that is
        unknown.
        """
        given = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if value is None else round(value, 6) for name, value in given.items()}


def pass_rate(passed: int, runs: int) -> Estimate:
    """Return the share of runs that passed, with Wilson's interval, which takes the runs as independent; `runs` is at
    least 1.
    """
    return Estimate(*_wilson(passed, runs))


def _wilson(passed: int, runs: int) -> tuple[float, float, float]:
    """Return the share `passed / runs`, and the lower and the upper end of Wilson's interval; `runs` is at least 1."""
    # Wilson's interval has a width also for rates of 0 and 1, and never leaves this range.
    share = passed / runs
    centre = share + _Z * _Z / (2 * runs)
    half = _Z * sqrt(share * (1 - share) / runs + _Z * _Z / (4 * runs * runs))
    scale = 1 + _Z * _Z / runs
    return share, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def pass_hat(passed: Sequence[int], runs: int, k: int) -> float:
    """Return pass^k: the probability that k runs of a case all pass, averaged over the cases.

    The estimate is unbiased: of the k-subsets of a case's runs, it is the share that has no failed run.

    Args:
        passed: Number of passed runs of each case; at least one case.
        runs: Number of runs of each case.
        k: From 1 to `runs`.
    """
    # The k-th power of the pass rate would be too high on average.
    return fmean(comb(each, k) / comb(runs, k) for each in passed)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of second minus first, with the interval that `mean` gives for the differences of the pairs.

    Both have one value for each of the same cases, at least one, in the same order; `ValueError` if the lengths differ.
    """
    differences = [after - before for before, after in zip(first, second, strict=True)]
    return mean(differences)


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean of at least one value with its interval, which a single value does not have.

    It is the percentile interval of a bootstrap with a fixed seed; for more than 200 values, that of the normal
    distribution.
    """
    if len(values) < 2:
        return Estimate(fmean(values))
    if len(values) > _MOST_RESAMPLED:
        half = _Z * stdev(values) / sqrt(len(values))
        return Estimate(fmean(values), fmean(values) - half, fmean(values) + half)
    # A generator of its own, which leaves the random numbers of the program alone.
    choose = random.Random(_SEED).choices
    means = sorted(fmean(choose(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = round(_RESAMPLES * (1 - CONFIDENCE) / 2)
    return Estimate(fmean(values), means[cut], means[-1 - cut])


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of `second` minus the mean of `first`, each of at least one value, from different inputs.

    The interval is that of the normal distribution (Welch); absent if either has a single value.
    """
    value = fmean(second) - fmean(first)
    if min(len(first), len(second)) < 2:
        return Estimate(value)
    half = _Z * sqrt(variance(first) / len(first) + variance(second) / len(second))
    return Estimate(value, value - half, value + half)


def rate_difference(first: tuple[int, int], second: tuple[int, int]) -> Estimate:
    """Return the second rate minus the first, with Newcombe's interval, which joins the intervals of Wilson.

    Each rate is given as the numbers of successes and of trials, at least one.
    """
    (one, low, high), (other, other_low, other_high) = (_wilson(*counts) for counts in (first, second))
    # The simple interval of a difference is too narrow for few trials and for rates near 0 or 1.
    value = other - one
    return Estimate(value, value - hypot(other - other_low, high - one), value + hypot(other_high - other, one - low))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: whether two agents differ.

    The arguments are the numbers of cases that only the first and only the second agent passed; 1.0 if both are 0.
    """
    pairs = only_first + only_second
    tail = sum(comb(pairs, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / float(2**pairs))


COMPARED_MEASURES = ("thumbs", "steps", "tokens", "cost", "seconds")
_ABSENT = "(none)"
"""Name of the arm of inputs without the field."""


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input of a session that has ended."""

    arm: str
    """Value of the field that the inputs are grouped by; `(none)` if the input does not have it."""
    at: datetime
    """When the input began."""
    succeeded: bool
    """Whether the input ended with the status `COMPLETED`."""
    steps: float
    """Plans with calls, which are the waves run."""
    tokens: float
    """Tokens of requests and replies, those of delegates included."""
    cost: float | None
    """Cost in the currency of the price table; None without prices."""
    thumbs: float | None
    """Share of thumbs up among the feedback on its answers; None without feedback."""
    up: int
    """Thumbs up on its answers, the newest of each person."""
    down: int
    """Thumbs down on its answers."""
    seconds: float
    """Seconds from the begin to the end of the input, without waits for a person."""
    early: EarlyWork
    """What began before a plan asked for it."""


def rows_of(events: Iterable[Mapping[str, Any]], field: str) -> Iterator[InputRow]:
    """Yield the ended inputs in the events of a session, oldest first; running ones are skipped.

    An input succeeded if its status is `COMPLETED`. Seconds exclude the time of waiting for a person.

    Args:
        events: Events of the session, from the beginning of an input on.
        field: `model`, or a field of events, such as `planner`. The arm of an input is the value in its first event
            that has the field.
    """
    events = list(events)
    ratings = ratings_of(events)
    first = 0
    for own in inputs_of(events):
        rated = [each for at in range(first, first + len(own)) for each in ratings.get(at, ())]
        first += len(own)
        (span,) = spans_of(own)
        if span.status == "RUNNING" or span.duration_s is None:
            continue
        # The time of a person is not the agent's.
        waits = sum(each.duration_s or 0.0 for each in span.children if each.kind == "wait")
        plans = [entry for entry in own if entry["type"] == "plan"]
        yield InputRow(
            arm=_value(own, field),
            at=span.start,
            succeeded=span.status == "COMPLETED",
            steps=sum(bool(plan["calls"]) for plan in plans),
            tokens=span.input_tokens + span.output_tokens,
            cost=span.cost,
            thumbs=fmean(rated) if rated else None,
            up=rated.count(1.0),
            down=rated.count(0.0),
            seconds=max(0.0, span.duration_s - waits),
            early=span.early,
        )


def ratings_of(events: Sequence[Mapping[str, Any]]) -> dict[int, list[float]]:
    """Return index of a rated answer → the newest rating of each person, 1.0 for up and 0.0 for down."""
    return {
        answer: [float(entry["rating"] == "up") for entry in given.values()]
        for answer, given in newest_feedback(events).items()
    }


def _value(events: Sequence[Mapping[str, Any]], field: str) -> str:
    """Return the value of a field in the first event that has it, as text; `(none)` if there is none.

    For `model`, it is the model of the first recorded model call. `prompts` and `tools` stand for the versions of all
    prompts and tools of a plan, `prompts.NAME` and `tools.NAME` for that of one.
    """
    kind, _, name = field.partition(".")
    for entry in events:
        if kind in ("prompts", "tools"):
            if "versions" in entry:
                found = entry["versions"][kind]
                return str(found.get(name, _ABSENT)) if name else version_of(found)
            continue
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
        """The share of inputs that completed, with its interval."""
        return pass_rate(sum(row.succeeded for row in self.rows), len(self.rows))

    @property
    def early(self) -> EarlyWork:
        """What began before a plan of an input asked for it, summed over the inputs."""
        return sum((row.early for row in self.rows), NO_EARLY_WORK)

    def values(self, measure: str) -> list[float]:
        """Return the values of a measure, one of `COMPARED_MEASURES`; inputs without a value are left out."""
        return [value for row in self.rows if (value := getattr(row, measure)) is not None]

    def estimates(self) -> dict[str, Estimate]:
        """Return `success` → the share of completed inputs, and each measure that has values → its mean."""
        means = {name: mean(values) for name in COMPARED_MEASURES if (values := self.values(name))}
        return {"success": self.success, **means}

    def minus(self, other: Arm) -> dict[str, Estimate]:
        """Return the differences from another arm (this minus the other), by name.

        The names are `success`, for the share of inputs that succeeded, and each measure of which both arms have
        values.
        """
        counts = [(sum(row.succeeded for row in arm.rows), len(arm.rows)) for arm in (other, self)]
        found = {"success": rate_difference(*counts)}
        for name in COMPARED_MEASURES:
            theirs, own = other.values(name), self.values(name)
            if theirs and own:
                found[name] = difference(theirs, own)
        return found

    def as_json(self, first: Arm | None) -> dict[str, Any]:
        """Return the arm as plain JSON: name, numbers of inputs and of thumbs, and estimates with intervals.

        The estimate of the seconds also has the 95th percentile. If anything began before a plan asked for it, its sums
        are added as `early`. With `first`, the differences from that arm are added as `minus_first`.
        """
        estimates = {name: each.as_json() for name, each in self.estimates().items()}
        seconds = sorted(self.values("seconds"))
        estimates["seconds"]["p95"] = round(seconds[min(len(seconds) - 1, int(len(seconds) * 0.95))], 6)
        rated = {"thumbs_up": sum(row.up for row in self.rows), "thumbs_down": sum(row.down for row in self.rows)}
        found = {"arm": self.name, "inputs": len(self.rows), **rated, **estimates}
        if (early := self.early).started:
            found["early"] = early.as_json()
        if first is not None:
            found["minus_first"] = {name: each.as_json() for name, each in self.minus(first).items()}
        return found


def arms_of(rows: Iterable[InputRow]) -> list[Arm]:
    """Group inputs by their arm; the arm with the most inputs is first, equal ones in alphabetical order."""
    grouped: dict[str, list[InputRow]] = {}
    for row in rows:
        grouped.setdefault(row.arm, []).append(row)
    arms = [Arm(name, tuple(own)) for name, own in grouped.items()]
    return sorted(arms, key=lambda arm: (-len(arm.rows), arm.name))
