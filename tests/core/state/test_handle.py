"""The handle that a run passes to the runs inside it, through their `configurable`."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from graph_agent.core.state.run import AgentHandle, Run, RunHandle, handle_of, merge_handles, with_handle

OUTER = Run()
HANDLE = RunHandle()


def fields_of(configurable: dict[str, Any]) -> dict[str, Any]:
    handle = handle_of(configurable)
    return {name: found for name in AgentHandle.__slots__ if (found := getattr(handle, name)) not in (None, False)}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"run": OUTER, "is_watched": True, "in_foreground": True}),
        (
            with_handle({}, hides_nodes=True),
            {"parent": OUTER, "is_watched": True, "in_foreground": True, "hides_nodes": True},
        ),
        (with_handle({"thread_id": "own"}, hides_nodes=True), {"parent": OUTER, "hides_nodes": True}),
        (with_handle({"thread_id": "own"}, parent=HANDLE), {"parent": HANDLE}),
    ],
    ids=["without a handle", "on the same thread", "on its own thread", "with a parent of its own"],
)
def test_a_run_inside_another_inherits_from_it(given: dict[str, Any], found: dict[str, Any]) -> None:
    surrounding = with_handle({"thread_id": "outer"}, AgentHandle(OUTER, is_watched=True, in_foreground=True))

    merged = merge_handles(surrounding, given)

    assert (merged["thread_id"], fields_of(merged)) == (given.get("thread_id", "outer"), found)


def test_a_serializer_does_not_look_into_the_handle() -> None:
    class Runtime(BaseModel):
        configurable: Any

    handle = AgentHandle(OUTER)

    dumped = Runtime(configurable=with_handle({}, handle)).model_dump()

    assert handle_of(dumped["configurable"]).run is OUTER
