"""Memory after large requests: no cycles and no unbounded caches."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from graph_agent import AgentContext
from graph_agent.base._internal.json_bounds import JsonBounds
from graph_agent.core.execution import deps
from graph_agent.interfaces.server.admission.body import COLLECT_BYTES, BodyLimits


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("size", "remains"), [(COLLECT_BYTES, False), (COLLECT_BYTES - 1, True)])
async def test_the_cycles_of_large_bodies_are_collected(size: int, remains: bool) -> None:
    cycles: list[weakref.ref[_Cycle]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        cycles.append(weakref.ref(_Cycle()))

    async def receive() -> Any:
        return {"type": "http.request", "body": b" " * size, "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    limited = BodyLimits(
        app,
        max_bytes=size,
        timeout_s=30,
        refuse=lambda path, problem: Response(),
        slot=lambda scope: nullcontext(),
        json=JsonBounds(values=1, depth=1),
    )
    gc.disable()
    try:
        await limited({"type": "http", "headers": [], "path": "/"}, receive, send)
        is_left = cycles[0]() is not None
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
