"""LangGraph's private names for delta channels: their full copies, and when these are written."""

from __future__ import annotations

import pytest
from langgraph._internal._constants import NULL_TASK_ID, RESUME
from langgraph.channels import DeltaChannel

from graph_agent.base._compat import checkpoints, index_pending_writes
from graph_agent.persistence import strict_serializer


def test_langgraph_asks_channels_that_decide_on_their_copies() -> None:
    asked: list[tuple[int, int]] = []

    class Deciding(DeltaChannel[list[str]]):
        def is_copy_due(self, *counts: int) -> bool:
            asked.append((counts[0], counts[1]))
            return counts[0] > 1

    checkpoints.let_channels_decide_on_copies(lambda counters, name, length: None)
    found = []
    for module in checkpoints._pregel_modules:
        channels = {name: Deciding(lambda state, writes: state, list) for name in "abc"}
        counters = {"a": (1, 9_999), "b": (2, 2), "c": (5, 5)}
        found.append(module.delta_channels_to_snapshot(channels, counters, {"a": "1", "b": "1"}))

    assert (found, asked) == ([{"b"}] * 2, [(1, 9_999), (2, 2)] * 2)


def test_a_full_copy_is_read_back_as_the_value() -> None:
    serializer = strict_serializer()
    copy = serializer.loads_typed(serializer.dumps_typed(checkpoints.delta_snapshot(["a"])))

    channel = DeltaChannel[list[str]](
        lambda state, writes: [*state, *(item for write in writes for item in write)], list
    )

    assert checkpoints.replay_delta(channel, {"writes": [("t", "c", ["b"])], "seed": copy}) == ["a", "b"]


@pytest.mark.parametrize(
    "tasks", [("a", "b", "c"), ("a", "b", "a", "b"), ("a", NULL_TASK_ID, "a", NULL_TASK_ID, "b", "b")]
)
def test_an_index_of_pending_writes_changes_none_of_them(tasks: tuple[str, ...]) -> None:
    index_pending_writes()
    loop_class = checkpoints._pregel_modules[1].AsyncPregelLoop
    found = []
    for put_writes in (loop_class.put_writes, loop_class.put_writes.__wrapped__):
        loop = object.__new__(loop_class)
        loop.specs, loop.cache, loop.durability, loop._has_untracked_channels = {}, None, "exit", False
        loop.checkpoint_pending_writes, loop._written_task_ids = [("b", "stored", 0)], set()
        for number, task in enumerate(tasks):
            put_writes(loop, task, [("written", number), (RESUME, number)])
            found.append([*loop.checkpoint_pending_writes])
        loop.checkpoint_pending_writes.clear()
        put_writes(loop, "a", [("written", 0)])
        found.append([*loop.checkpoint_pending_writes])

    assert found[: len(found) // 2] == found[len(found) // 2 :]
