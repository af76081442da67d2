"""The effect ledger records each writing call when it starts, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.execution.ledger import STARTED
from tests.support.agents import asks
from tests.support.gates import Gate
from tests.support.result_texts import NOT_STARTED, UNKNOWN

IDS = ["1", "2", "3", "4", "5", "6"]
WAVE = asks(*((id_, "write", {"id": id_}) for id_ in IDS))
DONE = ["No more actions.", "Done."]


class NotingSaver(InMemorySaver):
    """A ledger that records the ids of each write, and stores none before `gate` is open."""

    def __init__(self, gate: Gate | None = None, error: Exception | None = None) -> None:
        super().__init__()
        self.gate = gate
        self.error = error
        self.notes: list[list[str]] = []

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        for channel, ids in writes:
            if channel == STARTED:
                if self.error is not None:
                    raise self.error
                self.notes.append(ids)
                if self.gate is not None:
                    await self.gate.passing()
        await super().aput_writes(config, writes, task_id, task_path)


class Writing:
    """A session whose wave of six writing calls waits at a gate, some at a time."""

    def __init__(self, at_once: int, saver: InMemorySaver | None = None, gate: Gate | None = None) -> None:
        self.ran: list[str] = []
        self.gate = gate or Gate()
        self.saver = saver or InMemorySaver()
        self.talk = Session(
            create_graph_agent(
                ScriptedChatModel([WAVE, *DONE]),
                tools=[self._write()],
                config=LoopConfig(effect_ledger=True, max_parallel_calls=at_once),
                checkpointer=self.saver,
            ),
            "s1",
        )

    def _write(self) -> BaseTool:
        @tool
        async def write(id: str) -> str:
            """Change something."""
            self.ran.append(id)
            await self.gate.passing()
            return f"wrote {id}"

        return write

    async def cut_off(self, begun: int) -> None:
        """Cancel the run after so many calls have started."""
        run = asyncio.create_task(self.talk.run("go"))
        while len(self.ran) < begun:
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        self.gate.open()


@pytest.mark.parametrize("at_once", [1, 2, 4])
async def test_new_input_reports_calls_that_had_no_slot_as_never_begun(at_once: int) -> None:
    writing = Writing(at_once)
    await writing.cut_off(at_once)
    states = [record.state for record in await writing.talk.calls()]

    await writing.talk.run("never mind")

    results = [(e["status"], e["content"]) for e in await writing.talk.events() if e["type"] == "tool_result"]
    unbegun = len(IDS) - at_once
    assert (writing.ran, states, results) == (
        IDS[:at_once],
        ["started"] * at_once + ["planned"] * unbegun,
        [("unknown", UNKNOWN)] * at_once + [("skipped", NOT_STARTED)] * unbegun,
    )


@pytest.mark.parametrize("at_once", [1, 2, 4])
async def test_a_resumed_wave_runs_the_calls_that_had_no_slot(at_once: int) -> None:
    writing = Writing(at_once)
    await writing.cut_off(at_once)

    result = await writing.talk.resume()

    assert (sorted(writing.ran), result.results) == (
        IDS,
        {id_: {"error": UNKNOWN} if id_ in IDS[:at_once] else f"wrote {id_}" for id_ in IDS},
    )


async def test_calls_that_start_together_share_one_ledger_write() -> None:
    saver = NotingSaver()
    writing = Writing(4, saver)

    await writing.cut_off(4)

    assert saver.notes == [IDS[:4]]


async def test_a_finished_wave_records_each_call_once_in_the_ledger() -> None:
    saver = NotingSaver()
    writing = Writing(2, saver)
    writing.gate.open()

    await writing.talk.run("go")

    assert (sorted(id_ for ids in saver.notes for id_ in ids), writing.ran) == (IDS, IDS)


async def test_a_call_runs_only_after_its_ledger_entry_is_stored() -> None:
    saver = NotingSaver(Gate())
    writing = Writing(2, saver)
    assert saver.gate is not None
    run = asyncio.create_task(writing.talk.run("go"))
    await saver.gate.reached()
    before = list(writing.ran)
    saver.gate.open()
    writing.gate.open()

    await run

    assert (before, writing.ran) == ([], IDS)


async def test_a_call_without_a_stored_ledger_entry_does_not_run() -> None:
    writing = Writing(2, NotingSaver(error=OSError("disk full")))

    with pytest.raises(OSError, match="disk full"):
        await writing.talk.run("go")

    assert writing.ran == []


async def test_an_abort_before_the_ledger_write_starts_no_call() -> None:
    saver = NotingSaver(Gate())
    writing = Writing(2, saver)
    assert saver.gate is not None
    run = asyncio.create_task(writing.talk.run("go"))
    await saver.gate.reached()
    await writing.talk.abort()
    result = await run

    saver.gate.open()

    statuses = {e["status"] for e in await writing.talk.events() if e["type"] == "tool_result"}
    assert (writing.ran, result.status, statuses) == ([], "ABORTED", {"skipped"})
