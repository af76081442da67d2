"""Pruning of random sessions: what remains reads as before, and continues as before. See also `tests/attack`."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, example, given, settings

from tests.support.pruning import PRUNINGS, pruned_and_unpruned


@settings(
    max_examples=8,
    # Each example takes too long to shrink it by thousands of attempts.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@example(steps=[("ask", 1), ("ask", 19), ("answer", 0)], position=19, replayed=False, joined=False)
@given(**PRUNINGS)
async def test_a_pruned_session_reads_and_continues_as_before(
    steps: list[tuple[str, int]], position: int, replayed: bool, joined: bool
) -> None:
    found, pruned, unpruned = await pruned_and_unpruned(steps, position, replayed=replayed, joined=joined)

    assert (found, pruned) == ([], unpruned)
