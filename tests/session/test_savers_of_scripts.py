"""Entry points of sessions and graphs on every kind of saver: blocking ones, and those of another running loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve, reject
from graph_agent.errors import SessionBusyError, SyncInLoopError
from graph_agent.persistence import open_saver
from graph_agent.session.results import Done, Token
from tests.support.agents import asks, echo, says, thread


class Blocking(InMemorySaver):
    """Has no asynchronous methods."""

    aget_tuple = BaseCheckpointSaver.aget_tuple
    alist = BaseCheckpointSaver.alist
    aput = BaseCheckpointSaver.aput
    aput_writes = BaseCheckpointSaver.aput_writes
    adelete_thread = BaseCheckpointSaver.adelete_thread


class Raising(Blocking):
    """Defines asynchronous methods that raise."""

    async def aget_tuple(self, config: Any) -> Any:
        raise NotImplementedError("no asynchronous methods")


@contextmanager
def in_a_running_loop(folder: Path, make: Callable[[Path], Any]) -> Iterator[Any]:
    """A saver of an event loop that runs in another thread until the context ends."""
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    manager = make(folder)
    try:
        yield asyncio.run_coroutine_threadsafe(manager.__aenter__(), loop).result(60)
        asyncio.run_coroutine_threadsafe(manager.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()


def async_sqlite(folder: Path) -> AbstractContextManager[Any]:
    return in_a_running_loop(folder, lambda at: AsyncSqliteSaver.from_conn_string(str(at / "a.db")))


def opened(folder: Path) -> AbstractContextManager[Any]:
    return in_a_running_loop(folder, lambda at: open_saver(f"sqlite:///{at / 'o.db'}"))


SAVERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "memory": lambda folder: nullcontext(InMemorySaver()),
    "blocking": lambda folder: nullcontext(Blocking()),
    "raising": lambda folder: nullcontext(Raising()),
    "SqliteSaver": lambda folder: SqliteSaver.from_conn_string(str(folder / "s.db")),
    "AsyncSqliteSaver": async_sqlite,
    "open_saver": opened,
}


@pytest.fixture(params=SAVERS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with SAVERS[request.param](tmp_path) as made:
        yield made


def agent_of(saver: Any, *replies: str, **options: Any) -> Any:
    return create_graph_agent(ScriptedChatModel(list(replies)), [echo], checkpointer=saver, **options)


CALL = asks(("c", "echo", {"text": "hello"}))


def test_a_session_runs_blocking_on_any_saver(saver: Any) -> None:
    session = Session(agent_of(saver, CALL, "First.", "Second."), "s1")

    results = [session.run_sync("one"), session.run_sync("two")]

    assert [(each.answer, each.results) for each in results] == [("First.", {"c": "hello"}), ("Second.", {})]


def test_a_session_streams_blocking_on_any_saver(saver: Any) -> None:
    session = Session(agent_of(saver, CALL, "It is here."), "s1")

    parts = list(session.stream_sync("one"))

    done = parts[-1]
    assert isinstance(done, Done)
    assert ("".join(part.text for part in parts if isinstance(part, Token)), done.result.answer) == ("It is here.",) * 2


def test_a_session_resumes_blocking_on_any_saver_in_another_object(saver: Any) -> None:
    graph = agent_of(saver, CALL, "Done.", config=LoopConfig(approve="echo"))

    waiting = Session(graph, "s1").run_sync("one")
    done = Session(graph, "s1").resume_sync(approve())

    assert (waiting.waiting, done.answer, done.results) == ("approval", "Done.", {"c": "hello"})


def test_approvals_are_decided_by_a_callback_on_any_saver(saver: Any) -> None:
    graph = agent_of(saver, CALL, "Done.", config=LoopConfig(approve="echo"))

    result = Session(graph, "s1", on_approval=lambda call: reject("No.")).run_sync("one")

    assert [call.status for call in result.calls] == ["denied"]


def test_an_input_with_an_id_runs_once_on_any_saver(saver: Any) -> None:
    session = Session(agent_of(saver, CALL, "First.", "Second."), "s1")

    results = [session.run_sync("one", input_id="i1"), session.run_sync("one", input_id="i1")]

    assert [each.answer for each in results] == ["First.", "First."]


def test_a_delegates_history_is_stored_on_any_saver(saver: Any) -> None:
    child = create_graph_agent(ScriptedChatModel([CALL, "Found."]), [echo])
    delegated = asks(("d", "delegate_to_r", {"task": "Look."}))
    graph = agent_of(saver, delegated, "Done.", delegates=[GraphDelegate("r", "Looks.", child)])

    result = Session(graph, "s1").run_sync("go")

    assert (result.answer, result.results) == ("Done.", {"d": "Found."})


def test_a_blocking_session_and_invoke_share_the_history_of_any_saver(saver: Any) -> None:
    graph = agent_of(saver, "First.", "Second.", "Third.")

    answers = [
        Session(graph, "s1").run_sync("one").answer,
        graph.invoke(says("two"), thread())["messages"][-1].text,
        Session(graph, "s1").run_sync("three").answer,
    ]

    state = graph.get_state(thread()).values["messages"]
    assert (answers, [message.text for message in state]) == (
        ["First.", "Second.", "Third."],
        ["one", "First.", "two", "Second.", "three", "Third."],
    )


def test_a_blocking_session_is_busy_for_other_runs_of_any_saver(saver: Any) -> None:
    refused: list[str] = []

    @tool
    def again() -> str:
        """Begin other runs of the same session."""

        def by_session() -> Any:
            return Session(graph, "s1").run_sync("other")

        def by_graph() -> Any:
            return graph.invoke(says("other"), thread())

        for run in (by_session, by_graph):
            worker = threading.Thread(target=_record, args=(run, refused))
            worker.start()
            worker.join()
        return "tried"

    graph = create_graph_agent(ScriptedChatModel([asks(("a", "again", {})), "Done."]), [again], checkpointer=saver)

    result = Session(graph, "s1").run_sync("go")

    assert (result.answer, refused) == ("Done.", ["SessionBusyError"] * 2)


def _record(run: Callable[[], Any], refused: list[str]) -> None:
    try:
        run()
    except SessionBusyError as error:
        refused.append(type(error).__name__)


async def test_asynchronous_runs_and_reads_work_on_any_saver(saver: Any) -> None:
    graph = agent_of(saver, CALL, "First.", "Second.")

    answers = [(await Session(graph, "s1").run("one")).answer]
    answers.append((await graph.ainvoke(says("two"), thread()))["messages"][-1].text)
    await graph.aupdate_state(thread(), {"messages": [("user", "three")]})
    state = await graph.aget_state(thread())
    steps = [found.metadata["step"] async for found in graph.aget_state_history(thread())]

    texts = [message.text for message in state.values["messages"] if message.text != "hello"]
    assert (answers, texts, steps) == (
        ["First.", "Second."],
        ["one", "", "First.", "two", "Second.", "three"],
        [*range(steps[0], -2, -1)],
    )


def test_an_update_is_made_blocking_on_any_saver(saver: Any) -> None:
    graph = agent_of(saver, "First.")
    graph.invoke(says("one"), thread())

    graph.update_state(thread(), {"messages": [("user", "two")]})

    assert [message.text for message in graph.get_state(thread()).values["messages"]] == ["one", "First.", "two"]


async def test_an_update_that_would_wait_for_its_own_event_loop_is_refused(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        graph = agent_of(saver, "First.")
        await graph.ainvoke(says("one"), thread())

        with pytest.raises(SyncInLoopError, match=r"use 'await graph\.aupdate_state"):
            graph.update_state(thread(), {"messages": [("user", "two")]})


async def test_a_saver_of_the_running_loop_serves_blocking_runs_of_its_worker_threads(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        graph = agent_of(saver, CALL, "First.", "Second.")
        first = await asyncio.to_thread(lambda: Session(graph, "s1").run_sync("one"))
        second = await Session(graph, "s1").run("two")
        events = await Session(graph, "s1").events()

    answers = [event["content"] for event in events if event["type"] == "agent_response"]
    assert ([first.answer, second.answer], answers) == (["First.", "Second."], ["First.", "Second."])


async def test_parallel_blocking_runs_on_a_saver_of_the_running_loop_end(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        graph = create_graph_agent(ScriptedChatModel(["Done."], cycle=True), [echo], checkpointer=saver)
        runs = [asyncio.to_thread(Session(graph, f"s{at}").run_sync, "go") for at in range(8)]
        results = await asyncio.gather(*runs)

    assert [result.answer for result in results] == ["Done."] * 8
