"""The simulation of LLMCompiler's latencies."""

from __future__ import annotations

import pytest

from proofs.llm_compiler import HOTPOT, MOVIES, PARALLEL, Benchmark, fit, simulate


@pytest.mark.parametrize("published", [HOTPOT, MOVIES, PARALLEL], ids=lambda each: each.name)
def test_delays_of_react_predict_the_latency_of_one_plan(published: Benchmark) -> None:
    react, planned, streamed, *parallel = simulate(published, fit()[published.name])

    assert react == pytest.approx(published.react.latency_s)
    assert planned == pytest.approx(published.planned.latency_s, rel=0.06)
    assert streamed <= planned
    assert streamed == pytest.approx(published.streamed.latency_s, rel=0.17)
    assert parallel == [pytest.approx(row.latency_s, rel=0.18) for row in [published.parallel] if row is not None]
