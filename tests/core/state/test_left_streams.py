"""Streams that are abandoned: the session accepts its next input."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import SessionBusyError
from graph_agent.session.results import CallState, Done, Part
from tests.support.agents import asks

CALL = asks(("1", "wait", {}))


class Waiting:
    """A session whose first input waits in a tool, and whose further inputs are answered at once."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

        @tool
        async def wait() -> str:
            """Wait."""
            self.began.set()
            await self.go_on.wait()
            return "waited"

        model = ScriptedChatModel([CALL, *["No more actions.", "Done."] * 2])
        self.graph = create_graph_agent(model, tools=[wait], checkpointer=InMemorySaver())

    def session(self) -> Session:
        return Session(self.graph, "s1")


FIRST: tuple[Any, RunnableConfig] = {"messages": [("user", "first")]}, {"configurable": {"thread_id": "s1"}}


async def leave_by_break(session: Session) -> None:
    async for _ in session.stream("first"):
        break


async def leave_by_break_and_keep_the_stream(session: Session) -> object:
    stream = session.stream("first")
    async for part in stream:
        if isinstance(part, CallState):
            break
    return stream


async def leave_by_return(session: Session) -> Part:
    async for part in session.stream("first"):
        return part
    raise AssertionError


async def leave_by_an_exception(session: Session) -> None:
    with contextlib.suppress(KeyError):
        async for _ in session.stream("first"):
            raise KeyError


async def leave_by_closing(session: Session) -> None:
    async with aclosing(session.stream("first")) as parts:
        await anext(parts)


async def leave_by_dropping(session: Session) -> None:
    await anext(session.stream("first"))


async def leave_by_cancelling(session: Session) -> None:
    running = asyncio.create_task(session.run("first"))
    while (await session.status()) != "RUNNING":
        await asyncio.sleep(0)
    running.cancel()


async def leave_by_aborting(session: Session) -> asyncio.Task[object]:
    running: asyncio.Task[object] = asyncio.create_task(session.run("first"))
    while not await session.abort():
        await asyncio.sleep(0)
    return running


async def leave_the_graphs_stream(graph: Any) -> None:
    async for _ in graph.astream(*FIRST, stream_mode="updates"):
        break


async def leave_the_graphs_stream_and_keep_it(graph: Any) -> object:
    stream = graph.astream(*FIRST, stream_mode="custom")
    async for _ in stream:
        break
    return stream


async def leave_the_graphs_events(graph: Any) -> None:
    async for event in graph.astream_events(*FIRST, version="v2"):
        if event["event"] == "on_chat_model_stream":
            break


async def leave_the_graphs_events_and_keep_them(graph: Any) -> object:
    events = graph.astream_events(*FIRST, version="v2")
    async for event in events:
        if event["event"] == "on_chat_model_stream":
            break
    return events


async def leave_a_generator_around_the_graphs_stream(graph: Any) -> None:
    sequence = graph | RunnableLambda(lambda state: state)
    async for event in sequence.astream_events(*FIRST, version="v2"):
        if event["event"] == "on_chat_model_stream":
            break


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_break_and_keep_the_stream,
        leave_by_return,
        leave_by_an_exception,
        leave_by_closing,
        leave_by_dropping,
        leave_by_cancelling,
        leave_by_aborting,
    ],
    ids=lambda leave: leave.__name__,
)
async def test_a_session_takes_its_next_input_once_its_run_is_left(leave: Any) -> None:
    waiting = Waiting()

    kept = await leave(waiting.session())
    waiting.go_on.set()
    result = await waiting.session().run("second")

    assert (result.status, kept is waiting) == ("COMPLETED", False)


@pytest.mark.parametrize(
    "leave",
    [
        leave_the_graphs_stream,
        leave_the_graphs_stream_and_keep_it,
        leave_the_graphs_events,
        leave_the_graphs_events_and_keep_them,
        leave_a_generator_around_the_graphs_stream,
    ],
    ids=lambda leave: leave.__name__,
)
async def test_a_graph_takes_its_next_input_once_its_stream_is_left(leave: Any) -> None:
    waiting = Waiting()

    kept = await leave(waiting.graph)
    waiting.go_on.set()
    state = await waiting.graph.ainvoke({"messages": [("user", "second")]}, FIRST[1])

    assert (state["status"], kept is waiting) == ("COMPLETED", False)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_blocking_stream_that_is_left_gives_way_to_the_next_input(keep: bool, asynchronous: bool) -> None:
    graph = create_graph_agent(ScriptedChatModel(["One, two.", "Done."]), checkpointer=InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": "s1"}}
    streams = [graph.stream({"messages": [("user", "first")]}, config, stream_mode="messages")]

    for _ in streams[0] if keep else streams.pop():
        break
    given = {"messages": [("user", "second")]}
    state = asyncio.run(graph.ainvoke(given, config)) if asynchronous else graph.invoke(given, config)

    assert (state["messages"][-1].content, len(streams)) == ("Done.", int(keep))


async def test_a_loop_that_is_left_can_be_followed_by_another_over_the_same_stream() -> None:
    waiting = Waiting()
    waiting.go_on.set()
    stream = waiting.session().stream("first")

    async for part in stream:
        if isinstance(part, CallState):
            break
    last = [part async for part in stream][-1]

    assert isinstance(last, Done)
    assert last.result.status == "COMPLETED"


async def test_a_run_from_inside_a_loop_over_the_sessions_stream_is_refused() -> None:
    waiting = Waiting()
    waiting.go_on.set()
    session = waiting.session()
    parts: list[Part] = []

    async for part in session.stream("first"):
        if not parts:
            with pytest.raises(SessionBusyError):
                await session.run("second")
        parts.append(part)

    assert isinstance(parts[-1], Done)


async def test_an_unstopped_run_keeps_the_session_busy() -> None:
    waiting = Waiting()
    running = asyncio.create_task(waiting.session().run("first"))
    await waiting.began.wait()

    with pytest.raises(SessionBusyError):
        await waiting.session().run("second")
    waiting.go_on.set()

    assert (await running).status == "COMPLETED"
