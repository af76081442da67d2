"""The time to an answer with overlap, on a virtual clock."""

from __future__ import annotations

from proofs.overlap.__main__ import PACES, beside_slow_calls, failures, times_of
from proofs.overlap.items import hotel, research
from proofs.overlap.ways import BY_LEVEL, COMPILER, CREATE_AGENT, IN_VAIN, PREDICTED, STREAMED, WAVE


def test_overlap_answers_dependent_calls_faster_than_create_agent_and_none_later_than_a_wave() -> None:
    items = [*hotel(), *research()]
    times = times_of(items, PACES["usual"])
    chains = [at for at, item in enumerate(items) if item.is_chain]
    order = (COMPILER, STREAMED, WAVE, CREATE_AGENT)

    assert (list(failures(items, times)), len(chains)) == ([], 3)
    assert [sorted(order, key=lambda way: times[way][at]) for at in chains] == [list(order)] * 3


def test_a_predicted_plan_saves_time_during_a_slow_call_and_costs_none_if_the_reply_is_wait() -> None:
    slow = beside_slow_calls()
    gained = {s: [round(a - b, 1) for a, b in zip(of[BY_LEVEL], of[PREDICTED], strict=True)] for s, of in slow.items()}

    assert list(failures([], {}, slow)) == []
    assert all(of[IN_VAIN] == of[BY_LEVEL] for of in slow.values())
    # A call that takes as long as the others leaves nothing to gain; the others end 0.1 s before the prediction begins.
    assert [gained[s] for s in (0.5, 0.7, 1.5)] == [[0.0] * 3, [0.1] * 3, [0.9] * 3]
