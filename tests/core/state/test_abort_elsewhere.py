"""Aborts of sessions that another process may run, with savers that have no locks: neither SQLite nor memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import Op, Result
from langgraph.store.memory import InMemoryStore

from graph_agent import ScriptedChatModel, Session, SessionStatus, create_graph_agent
from graph_agent.core.state.registry import running
from tests.support.agents import asks
from tests.support.gates import Gate, gated_tool


class SharedSaver(InMemorySaver):
    """One of several savers over one storage, as savers of several processes are over one database."""

    def __init__(self, other: SharedSaver | None = None) -> None:
        super().__init__()
        if other is not None:
            self.storage, self.writes, self.blobs = other.storage, other.writes, other.blobs


class HeldStore(InMemoryStore):
    """A store whose operations wait at a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        await self._gate.passing()
        return await super().abatch(ops)


def session(saver: Any, store: Any, gate: Gate) -> Session:
    model = ScriptedChatModel([asks(("1", "work", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[gated_tool(gate)], checkpointer=saver, store=store)
    return Session(graph, "s1")


async def test_a_run_elsewhere_is_reached_through_the_store() -> None:
    saver, store, gate = SharedSaver(), InMemoryStore(), Gate()
    run = asyncio.create_task(session(saver, store, gate).run("go"))
    await gate.reached()

    stopped = await session(SharedSaver(saver), store, Gate()).abort()
    async with asyncio.timeout(30):
        result = await run

    assert (stopped, gate.cancelled, result.status, result.stop_reason) == (
        True,
        True,
        SessionStatus.ABORTED,
        "aborted",
    )


async def test_aborting_a_session_left_by_a_cancelled_run_settles_it() -> None:
    saver, store, gate = SharedSaver(), InMemoryStore(), Gate()
    run = asyncio.create_task(session(saver, store, gate).run("go"))
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    talk = session(SharedSaver(saver), store, Gate())

    stopped = await talk.abort()

    assert (stopped, await talk.status(), store.search(("graph_agent", "inbox"))) == (True, SessionStatus.ABORTED, [])


async def test_a_cancel_during_the_final_poll_propagates() -> None:
    gate, over = Gate(), asyncio.Event()

    async def run() -> None:
        async with running({"thread_id": "s1"}, InMemorySaver(), HeldStore(gate)):
            await gate.reached()
            over.set()

    task = asyncio.create_task(run())
    # The task that sets it continues first, up to the run's wait for the poll.
    await over.wait()
    task.cancel()
    gate.open()
    async with asyncio.timeout(30):
        await asyncio.wait([task])

    assert task.cancelled()
