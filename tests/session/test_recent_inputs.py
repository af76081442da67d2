"""Inputs with an id in savers without an index of input ids: found with few reads, among the recent inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from graph_agent import RunResult, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve
from graph_agent.base.input_ids import MOST_INPUTS, RECENT_INPUTS
from tests.support.agents import asks
from tests.support.approvals import Desk


class CountingSaver(InMemorySaver):
    """A saver that counts the checkpoints that are read."""

    read = 0

    def get_tuple(self, config: Any) -> Any:
        self.read += 1
        return super().get_tuple(config)

    def list(self, *args: Any, **kwargs: Any) -> Any:
        for found in super().list(*args, **kwargs):
            self.read += 1
            yield found


def counting_session(saver: Any) -> Session:
    model = ScriptedChatModel([f"Answer {number}." for number in range(200)])
    return Session(create_graph_agent(model, checkpointer=saver), "s1")


async def inputs(session: Session, *numbers: int) -> list[RunResult]:
    return [await session.run(f"input {number}", input_id=f"id {number}") for number in numbers]


async def test_a_new_id_reads_as_many_checkpoints_after_50_inputs_as_after_5() -> None:
    saver = CountingSaver()
    session = counting_session(saver)
    reads: list[int] = []
    for number in range(51):
        saver.read = 0
        await inputs(session, number)
        reads.append(saver.read)

    assert reads[50] == reads[5]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_each_recent_input_is_recognized_between_inputs_without_an_id(kind: str, tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as sqlite:
        session = counting_session(InMemorySaver() if kind == "memory" else sqlite)
        first: list[RunResult] = []
        for number in range(6):
            await session.run("without an id")
            first += await inputs(session, number)
            await session.run("without an id")

        again = await inputs(session, *range(6))

    assert again == first


async def test_the_ids_of_a_session_before_a_fork_and_after_it_are_recognized() -> None:
    session = counting_session(InMemorySaver())
    first = await inputs(session, 0)
    config: Any = {"configurable": {"thread_id": "s1"}}
    fork = (await session.graph.aget_state(config)).config
    first += await inputs(session, 1, 2)
    await session.graph.aupdate_state(fork, {"messages": []})
    await session.run("without an id")
    first += await inputs(session, 3)

    assert await inputs(session, 0, 1, 2, 3) == first


async def test_the_ids_of_inputs_and_answers_are_recognized_among_each_other() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "Done.", "More.")
    session = desk.session
    first = [await session.run("go", input_id="a"), await session.resume(approve(), input_id="b")]
    first.append(await session.run("more", input_id="c"))

    again = [await session.run("go", input_id="a"), await session.resume(approve(), input_id="b")]

    assert (again, desk.ran) == (first[:2], ["wrote a"])


async def test_the_ids_of_a_session_of_an_earlier_version_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    session = counting_session(InMemorySaver())
    with monkeypatch.context() as earlier:
        earlier.setattr("graph_agent.session.deduplicator.index_of", lambda _: not_found)
        first = await inputs(session, 0, 1)
    first += await inputs(session, 2)

    assert await inputs(session, 0, 1, 2) == first


async def not_found(*_: str) -> None:
    return None


async def test_a_checkpoint_names_a_bounded_number_of_inputs() -> None:
    saver = InMemorySaver()
    session = counting_session(saver)
    await inputs(session, *range(MOST_INPUTS + 5))

    listed: list[Any] = [*saver.list(None, filter={"source": "input"})]
    stored = [len(each.metadata.get(RECENT_INPUTS, "")) for each in listed]
    assert (max(stored), sum(1 for _ in saver.list(None))) == (MOST_INPUTS, len(stored) * 4)
