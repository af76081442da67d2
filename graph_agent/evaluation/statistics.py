"""Estimates pass rates and paired differences, with intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, hypot, sqrt
from statistics import NormalDist, fmean, stdev, variance

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

    def as_json(self) -> dict[str, float | None]:
        """Return the estimate as plain JSON, rounded to six digits after the point."""
        given = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if value is None else round(value, 6) for name, value in given.items()}


def pass_rate(passed: int, runs: int) -> Estimate:
    """Return the share of runs that passed, with Wilson's interval, which takes the runs as independent.

    Args:
        runs: At least one.
    """
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

    The estimate is unbiased: of the k-subsets of a case's runs, it is the share that has no failed run.

    Args:
        passed: For each case, the number of its runs that passed.
        runs: Runs of each case.
        k: From 1 to `runs`.
    """
    return fmean(comb(each, k) / comb(runs, k) for each in passed)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of second minus first, with the percentile interval of a bootstrap over the pairs.

    Args:
        first: One value for each case; at least one.
        second: The values of the same cases.
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
    """Return the mean of the second values minus that of the first; the values are of different inputs.

    Args:
        first: At least one value.
        second: At least one value.
    """
    value = fmean(second) - fmean(first)
    if min(len(first), len(second)) < 2:
        return Estimate(value)
    half = _Z * sqrt(variance(first) / len(first) + variance(second) / len(second))
    return Estimate(value, value - half, value + half)


def rate_difference(first: tuple[int, int], second: tuple[int, int]) -> Estimate:
    """Return the second rate minus the first, with Newcombe's interval, which joins the intervals of Wilson.

    Args:
        first: Successes and trials.
        second: Successes and trials.
    """
    (one, low, high), (other, other_low, other_high) = (_wilson(*counts) for counts in (first, second))
    value = other - one
    return Estimate(value, value - hypot(other - other_low, high - one), value + hypot(other_high - other, one - low))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the p-value of McNemar's exact test, which is two-sided.

    Args:
        only_first: Cases that only the first agent passed.
        only_second: Cases that only the second agent passed.
    """
    pairs = only_first + only_second
    tail = sum(comb(pairs, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / float(2**pairs))
