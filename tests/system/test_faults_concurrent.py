"""One run at a time in a session, within a process and across processes on one database."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state.registry import is_idle
from graph_agent.errors import SessionBusyError
from graph_agent.persistence import open_saver
from tests.support.agents import asks, says, thread
from tests.support.fault_server import ForkServer, fork_server
from tests.support.held_sessions import run_after_holder_killed, run_while_held


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("server")) as served:
        yield served


class Door:
    """A tool that waits until it is released."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()

        @tool
        async def stay() -> str:
            """Wait for the file `leave`."""
            self.entered.set()
            while not self.open.is_set():
                await asyncio.sleep(0)
            return "let go"

        script = [asks(("1", "stay", {})), "No more actions.", "Done."]
        self.graph = create_graph_agent(ScriptedChatModel(script), tools=[stay], checkpointer=InMemorySaver())


@pytest.mark.parametrize("first", ["ainvoke", "invoke"])
async def test_a_second_run_is_refused_in_one_process(first: str) -> None:
    door = Door()
    graph = door.graph
    given, config = says("go"), thread()
    run = asyncio.create_task(
        graph.ainvoke(given, config) if first == "ainvoke" else asyncio.to_thread(graph.invoke, given, config)
    )
    while not door.entered.is_set():
        await asyncio.sleep(0)

    with pytest.raises(SessionBusyError, match="'s1' is running already"):
        await Session(graph, "s1").run("me too")
    with pytest.raises(SessionBusyError):
        await asyncio.to_thread(graph.invoke, given, config)
    door.open.set()

    inputs = [message.text for message in (await run)["messages"] if message.type == "human"]
    assert inputs == ["go"]


async def test_a_second_run_is_refused_across_processes(server: ForkServer, tmp_path: Path) -> None:
    server.begin("hold", folder=str(tmp_path))

    outcome = await run_while_held(server, tmp_path, f"sqlite:///{tmp_path}/sessions.db")

    assert outcome == ("Mine.", 0, "Other.")


async def test_the_lock_of_a_killed_process_is_taken_over_at_once(server: ForkServer, tmp_path: Path) -> None:
    server.begin("hold", folder=str(tmp_path))

    outcome = await run_after_holder_killed(server, tmp_path, f"sqlite:///{tmp_path}/sessions.db")

    assert outcome == (-9, "Mine.")


async def test_a_session_that_waits_for_a_person_is_not_locked(tmp_path: Path) -> None:
    @tool
    async def ask() -> str:
        """Ask a person."""
        return str(interrupt("Sure?"))

    model = ScriptedChatModel([asks(("1", "ask", {})), "No more actions.", "Done."])
    async with open_saver(f"sqlite:///{tmp_path}/sessions.db") as saver:
        graph = create_graph_agent(model, tools=[ask], checkpointer=saver)
        waits = await Session(graph, "s1").run("go")
        idle = await is_idle(saver, "s1")
        result = await Session(graph, "s1").resume("yes")

    assert (len(waits.interrupts), idle, result.answer, result.results) == (1, True, "Done.", {"1": "yes"})


async def test_two_sessions_run_side_by_side() -> None:
    inside: set[str] = set()

    @tool
    async def meet(who: str) -> str:
        """Wait for the other."""
        inside.add(who)
        while len(inside) < 2:
            await asyncio.sleep(0)
        return "met"

    saver = InMemorySaver()
    sessions = [
        Session(
            create_graph_agent(
                ScriptedChatModel([asks(("1", "meet", {"who": who})), "No more actions.", "Done."]),
                tools=[meet],
                checkpointer=saver,
            ),
            who,
        )
        for who in ("a", "b")
    ]

    results = await asyncio.gather(*(session.run("go") for session in sessions))

    assert [result.results for result in results] == [{"1": "met"}] * 2


async def test_a_session_is_not_run_from_inside_its_own_run() -> None:
    @tool
    async def again() -> str:
        """Run the session that is running."""
        return str((await Session(graph, "s1").run("again")).answer)

    @tool
    async def stream_again() -> str:
        """Stream the session that is running."""
        return str([part async for part in Session(graph, "s1").stream("again")])

    model = ScriptedChatModel([asks(("1", "again", {}), ("2", "stream_again", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[again, stream_again], checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go")

    why = (
        "SessionBusyError: Session 's1' is running already. Talk to that run (Session.steer, Session.follow_up), stop "
        "it (Session.abort), or wait for its end."
    )
    assert (result.results, result.answer) == (
        {"1": {"error": f"again failed: {why}"}, "2": {"error": f"stream_again failed: {why}"}},
        "Done.",
    )


@pytest.mark.parametrize("savers", [1, 2])
async def test_agents_with_savers_of_their_own_are_parallel_nodes_of_one_graph(savers: int) -> None:
    saver = InMemorySaver()
    parent = StateGraph(MessagesState)
    for name in "ab":
        own = saver if savers == 1 else InMemorySaver()
        parent.add_node(name, create_graph_agent(ScriptedChatModel([name]), checkpointer=own, name=name))
        parent.add_edge(START, name)
        parent.add_edge(name, END)

    result = await parent.compile(checkpointer=saver).ainvoke({"messages": [HumanMessage("hi")]}, thread())

    assert [message.text for message in result["messages"]] == ["hi", "a", "b"]


async def test_a_stream_that_is_closed_frees_its_session_at_once() -> None:
    door = Door()
    talk = Session(door.graph, "s1")
    async with contextlib.aclosing(talk.stream("go")) as parts:
        async for part in parts:
            if part.type == "progress":
                break
    door.open.set()

    assert (await talk.run("again")).answer == "Done."
