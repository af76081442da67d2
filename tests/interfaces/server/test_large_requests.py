"""Memory after large requests: no cycles and no unbounded caches."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from graph_agent import AgentContext
from graph_agent.base._internal.json_bounds import JsonBounds
from graph_agent.core.execution import deps
from graph_agent.interfaces.server.admission.body import COLLECT_BYTES, BodyLimits


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("size", "remains"), [(COLLECT_BYTES, False), (COLLECT_BYTES - 1, True)])
def test_the_cycles_of_large_bodies_are_collected(size: int, remains: bool) -> None:
    limits = BodyLimits(max_bytes=size, timeout_s=30, json=JsonBounds(values=1, depth=1))
    gc.disable()
    try:
        cycle = weakref.ref(_Cycle())
        limits.count_answered(size)
        is_left = cycle() is not None
    finally:
        gc.enable()

    assert is_left == remains


def test_contexts_of_runs_are_cached_within_a_size_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deps, "_variant", lambda parts, context: context)
    parts: Any = SimpleNamespace(context_schema=AgentContext, variants={})

    kept: list[int] = []
    for size in (10, 900_000, 900_000, 900_000, 5_000_000, 10):
        runtime: Any = SimpleNamespace(context={"instructions": f"{len(kept)}" * size})
        deps.deps_of_run(parts, runtime)
        kept.append(len(parts.variants))

    assert kept == [1, 2, 3, 2, 1, 1]
