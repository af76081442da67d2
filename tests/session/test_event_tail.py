"""Newest events: read without the history, and equal to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph.types import Overwrite

from graph_agent import Session, SessionStatus
from graph_agent.core.state.channels import GrowingDelta
from graph_agent.persistence import open_saver, prune
from graph_agent.state.events import append_events
from tests.support.pruning import agent, take_step


async def pages(session: Session) -> list[Any]:
    """Whether each page is the end of the history."""
    whole = await session.events()
    lasts = [await session.events(last=last) == whole[-last:] for last in (1, 3, 10, 1000)]
    afters = [
        await session.events(after=after) == whole[after + 1 :] for after in (0, 5, len(whole) - 2, len(whole) + 5)
    ]
    return [*lasts, *afters, await session.events(last=2, after=len(whole) - 2) == whole[-1:]]


async def test_a_page_is_the_end_of_the_history(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        session = Session(agent(saver, []), "s1")
        read = [await session.events(last=5) == []]
        for number, step in enumerate(("answer", "wave", "delegate", "cancelled", "edit", "ask", "resume")):
            await take_step(saver, step, number)
            read += await pages(session)
        await prune(f"sqlite:///{tmp_path / 'a.db'}", keep_last=1)
        read += await pages(session)
        await take_step(saver, "wave", 20)
        read += await pages(session)

    assert read == [True] * len(read)


async def test_a_page_reads_the_newest_checkpoints_only(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        for number in range(6):
            await take_step(saver, "wave", number)
        counted, get = [0], saver.aget_tuple

        async def counting(config: Any) -> Any:
            counted[0] += 1
            return await get(config)

        saver.aget_tuple = counting  # type: ignore[method-assign]  # to count the reads
        session = Session(agent(saver, []), "s1")
        status, page = await session.status(), await session.events(last=6)

    assert (status, len(page), counted[0] <= 8) == (SessionStatus.COMPLETED, 6, True)


async def test_a_history_that_a_person_set_is_read_whole(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 'a.db'}") as saver:
        for number in range(3):
            await take_step(saver, "answer", number)
        graph = agent(saver, [])
        kept = (await graph.aget_state({"configurable": {"thread_id": "s1"}})).values["events"][:4]
        config = {"configurable": {"thread_id": "s1", "checkpoint_ns": ""}}
        await graph.aupdate_state(config, {"events": Overwrite(kept)}, as_node="finalize")
        first = await pages(Session(graph, "s1"))
        await take_step(saver, "wave", 5)
        second = await pages(Session(graph, "s1"))

    assert (first, second) == ([True] * 9, [True] * 9)


def test_a_full_copy_is_due_when_the_list_has_doubled() -> None:
    channel = GrowingDelta(append_events, list, snapshot_frequency=3)
    due: list[int] = []
    updates = supersteps = 0
    channel = channel.from_checkpoint([])
    for number in range(100):
        channel.update([[{"type": "status", "ts": "", "step": number}]])
        channel = channel.copy()
        updates, supersteps = updates + 1, supersteps + 1
        if channel.is_copy_due(updates, supersteps):
            due.append(number + 1)
            channel = channel.from_checkpoint(channel.get())  # as the next run reads it
            updates = supersteps = 0

    assert (due, channel.is_copy_due(1, 10_000)) == ([3, 6, 12, 24, 48, 96], True)
