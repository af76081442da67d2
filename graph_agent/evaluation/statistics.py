"""Estimates pass rates and paired differences, with intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist, fmean

CONFIDENCE = 0.95
"""Share of intervals that cover the true value."""
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
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share = passed / runs
    centre = share + z * z / (2 * runs)
    half = z * sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs))
    scale = 1 + z * z / runs
    return Estimate(share, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))


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
    """Return the mean of values, with the percentile interval of a bootstrap; at least one value."""
    if len(values) < 2:
        return Estimate(fmean(values))
    choose = random.Random(_SEED).choices
    means = sorted(fmean(choose(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = round(_RESAMPLES * (1 - CONFIDENCE) / 2)
    return Estimate(fmean(values), means[cut], means[-1 - cut])


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the p-value of McNemar's exact test, which is two-sided.

    Args:
        only_first: Cases that only the first agent passed.
        only_second: Cases that only the second agent passed.
    """
    pairs = only_first + only_second
    tail = sum(comb(pairs, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / float(2**pairs))
