"""The time to an answer with overlap, on a virtual clock."""

from __future__ import annotations

from proofs.overlap.__main__ import PACES, failures, times_of
from proofs.overlap.items import hotel, research
from proofs.overlap.ways import COMPILER, CREATE_AGENT, STREAMED, WAVE


def test_overlap_answers_dependent_calls_faster_than_create_agent_and_none_later_than_a_wave() -> None:
    items = [*hotel(), *research()]
    times = times_of(items, PACES["usual"])
    chains = [at for at, item in enumerate(items) if item.is_chain]
    order = (COMPILER, STREAMED, WAVE, CREATE_AGENT)

    assert (list(failures(items, times)), len(chains)) == ([], 3)
    assert [sorted(order, key=lambda way: times[way][at]) for at in chains] == [list(order)] * 3
