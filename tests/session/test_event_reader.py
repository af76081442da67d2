"""Incremental reads of a session's events equal the complete history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.persistence import open_saver, prune
from graph_agent.session.history import EventReader
from graph_agent.state.events import read_events
from tests.support.agents import add, asks, echo, says, thread

WAVE = asks(("1", "echo", {"text": "a"}), ("2", "add", {"a": 1, "b": 2}), ("3", "echo", {"text": "b"}))


def make(saver: Any) -> Any:
    return create_graph_agent(
        ScriptedChatModel([WAVE, "No more actions.", "Done."], cycle=True), tools=[echo, add], checkpointer=saver
    )


class CountingSaver(InMemorySaver):
    """Counts how often the whole history of a session is read."""

    histories = 0

    async def aget_delta_channel_history(self, **given: Any) -> Any:
        self.histories += 1
        return await super().aget_delta_channel_history(**given)


async def whole(graph: Any) -> list[Any]:
    return list(await SessionMemory(graph).get_session_events("s1"))


async def test_readings_at_every_superstep_add_up_to_the_history() -> None:
    saver = InMemorySaver()
    graph = make(saver)
    reader = EventReader(graph, saver, "s1")
    read: list[Any] = []
    for _ in range(3):
        async for _ in graph.astream(says("go"), thread(), stream_mode="checkpoints"):
            read += await reader.read() or ()
    read += await reader.read() or ()
    assert (read_events(read, "s1"), await reader.read()) == (await whole(graph), ())


async def test_an_incremental_read_skips_earlier_events() -> None:
    saver = CountingSaver()
    graph = make(saver)
    await graph.ainvoke(says("go"), thread())
    reader = EventReader(graph, saver, "s1")
    await reader.read()
    await graph.ainvoke(says("again"), thread())
    saver.histories = 0
    new = await reader.read()
    assert (saver.histories, len(new or ()) * 2) == (0, len(await whole(graph)))


async def test_a_fork_is_read_from_the_position_on() -> None:
    saver = InMemorySaver()
    graph = make(saver)
    await graph.ainvoke(says("go"), thread())
    early = [state.config async for state in graph.aget_state_history(thread())][-2]
    reader = EventReader(graph, saver, "s1")
    first = list(await reader.read() or ())
    await graph.aupdate_state(early, {"messages": [HumanMessage("other")]})
    await graph.ainvoke(None, thread())
    await graph.ainvoke(says("on"), thread())
    now = await whole(graph)
    rest = list(await reader.read() or ())
    assert read_events([*now[: len(first)], *rest], "s1") == now


async def test_a_prune_between_two_readings_hides_no_event(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        graph = make(saver)
        reader = EventReader(graph, saver, "s1")
        await graph.ainvoke(says("go"), thread())
        end = (await graph.aget_state(thread())).config
        read = list(await reader.read() or ())
        await graph.aupdate_state(end, {"messages": [HumanMessage("edited")]})
        await graph.ainvoke(says("on"), end)
        await prune(url, keep_last=1)

        read += await reader.read() or ()

        assert read_events(read, "s1") == await whole(graph)


@pytest.mark.parametrize("began", [False, True])
async def test_a_session_that_is_not_there_is_none(began: bool) -> None:
    saver = InMemorySaver()
    graph = make(saver)
    reader = EventReader(graph, saver, "s1")
    if began:
        await graph.ainvoke(says("go"), thread())
        await reader.read()
        await saver.adelete_thread("s1")
    assert await reader.read() is None
