"""The estimates of an evaluation."""

from __future__ import annotations

import pytest

from graph_agent.devtools.statistics import Estimate, mcnemar, paired_difference, pass_hat, pass_rate


@pytest.mark.parametrize(
    ("passed", "runs", "interval"),
    [(0, 10, (0.0, 0.0, 0.2775)), (10, 10, (1.0, 0.7225, 1.0)), (8, 10, (0.8, 0.4902, 0.9433))],
)
def test_a_pass_rate_has_wilsons_interval(passed: int, runs: int, interval: tuple[float, float, float]) -> None:
    found = pass_rate(passed, runs)

    assert (found.value, found.low, found.high) == pytest.approx(interval, abs=5e-5)


def test_pass_hat_is_the_share_of_subsets_without_a_failure() -> None:
    assert [pass_hat([4, 2, 0], 4, k) for k in (1, 2, 3, 4)] == pytest.approx([1 / 2, 7 / 18, 1 / 3, 1 / 3])


def test_a_paired_difference_excludes_what_both_have_in_common() -> None:
    found = paired_difference([100.0, 200.0, 300.0], [101.0, 201.0, 302.0])

    assert (round(found.value, 3), found.low, found.high) == (1.333, 1.0, 2.0)


def test_one_pair_has_no_interval() -> None:
    assert paired_difference([1.0], [3.0]) == Estimate(2.0)


@pytest.mark.parametrize(("only_first", "only_second", "p"), [(0, 0, 1.0), (1, 9, 0.021484375), (5, 5, 1.0)])
def test_mcnemars_test_is_exact_and_two_sided(only_first: int, only_second: int, p: float) -> None:
    assert mcnemar(only_first, only_second) == pytest.approx(p)
