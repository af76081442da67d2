"""Runs of an agent without a session: `run`, `run_sync` and `run_stream` of the compiled graph, and its copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel

from graph_agent import (
    AgentContext,
    LoopConfig,
    ScriptedChatModel,
    Session,
    build_graph,
    create_graph_agent,
)
from graph_agent.compiled import GraphAgent
from graph_agent.errors import ConfigError, InputError, SyncInLoopError
from tests.support.agents import asks, echo, kinds, says

CALL = asks(("1", "echo", {"text": "hello"}))
TEXT_MODE = LoopConfig(tool_calling="text")


class Total(BaseModel):
    total: int


def agent(*replies: str, **options: Any) -> GraphAgent[Any, Any]:
    """An agent with the tool `echo` and a script that is repeated."""
    options = {"tools": [echo], **options}
    return create_graph_agent(ScriptedChatModel([*replies] or [CALL, "It said hello."], cycle=True), **options)


def with_approvals(**options: Any) -> GraphAgent[Any, Any]:
    return agent(CALL, "done", config=LoopConfig(approve=["echo"]), **options)


def test_two_lines_give_an_answer() -> None:
    made = create_graph_agent(ScriptedChatModel(["It rains."]))

    assert made.run_sync("Do I need an umbrella?").answer == "It rains."


async def test_a_run_has_the_calls_and_the_events_of_a_session() -> None:
    result = await agent().run("go")

    assert (result.answer, [call.result for call in result.calls], result.usage["model_calls"]) == (
        "It said hello.",
        ["hello"],
        2,
    )
    assert kinds([*result.events]) == kinds(await _stored_events())


async def _stored_events() -> list[Any]:
    session = agent(checkpointer=InMemorySaver()).session("s1")
    await session.run("go")
    return await session.events()


async def test_a_stream_has_the_parts_of_a_sessions_stream() -> None:
    session = agent(checkpointer=InMemorySaver()).session("s1")

    parts = [part async for part in agent().run_stream("go")]

    assert [part.type for part in parts] == [part.type async for part in session.stream("go")]
    assert "".join(part.text for part in parts if part.type == "token") == "It said hello."


async def test_a_stream_that_is_left_stops_the_run() -> None:
    ended = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        get_stream_writer()("started")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    parts = agent(asks(("1", "wait", {})), tools=[wait]).run_stream("go")
    async for part in parts:
        if part.type == "custom":
            break
    await parts.aclose()

    await asyncio.wait_for(ended.wait(), 30)


async def test_a_run_knows_nothing_of_the_run_before_it() -> None:
    model = ScriptedChatModel(["a", "b"])
    made = create_graph_agent(model)

    await made.run("My name is Ada.")
    await made.run("What is my name?")

    assert "Ada" not in str(model.requests[1])


async def test_messages_of_an_earlier_conversation_come_first() -> None:
    model = ScriptedChatModel(["Ada."])

    result = await create_graph_agent(model).run(
        [HumanMessage("I am Ada."), AIMessage("Hi."), HumanMessage("Who am I?")]
    )

    assert (result.answer, "I am Ada." in str(model.requests[0])) == ("Ada.", True)


async def test_an_answer_is_an_instance_of_the_response_format() -> None:
    made = create_graph_agent(ScriptedChatModel(['{"total": 3}']), response_format=Total)

    assert (await made.run("Sum")).structured_response == Total(total=3)


@pytest.mark.parametrize("instead", ["run", "stream"])
async def test_an_agent_with_a_checkpointer_names_the_session_to_open(instead: str) -> None:
    made = agent(checkpointer=InMemorySaver())

    with pytest.raises(InputError) as raised:
        await made.run("hi") if instead == "run" else made.run_stream("hi")

    assert str(raised.value) == (
        "This agent has a checkpointer, so its runs belong to sessions. Write "
        f'agent.session("s1").{instead}(…) with an id of your own; the same id continues the conversation. '
        "An agent without a checkpointer runs without an id."
    )


async def test_a_session_of_an_agent_is_the_session_with_its_id() -> None:
    made = agent("one", "two", checkpointer=InMemorySaver())

    await made.session("s1").run("first")
    await Session(made, "s1").run("second")

    assert [each["content"] for each in await made.session("s1").events() if each["type"] == "user_message"] == [
        "first",
        "second",
    ]


async def test_a_session_of_an_agent_without_a_checkpointer_names_run() -> None:
    with pytest.raises(ConfigError, match=r"agent\.run\(…\) runs an input without a session"):
        await agent().session("s1").run("hi")


async def test_a_callback_decides_on_the_calls_of_a_run() -> None:
    asked: list[str] = []

    def decide(call: Any) -> bool:
        asked.append(call["name"])
        return True

    result = await with_approvals().run("go", on_approval=decide)

    assert (asked, [call.result for call in result.calls], result.answer) == (["echo"], ["hello"], "done")


async def test_a_call_that_waits_for_approval_without_a_callback_is_an_error() -> None:
    with pytest.raises(ConfigError, match="needs a person's approval, and there is no checkpointer"):
        await with_approvals().run("go")


@pytest.mark.parametrize("on_approval", [None, lambda call: True], ids=["alone", "with a callback"])
async def test_a_tool_that_asks_a_person_is_an_error_of_a_run_and_a_question_of_a_session(on_approval: Any) -> None:
    def confirm(text: str) -> str:
        """Ask a person."""
        return str(interrupt(text))

    replies = [asks(("1", "confirm", {"text": "Sure?"})), "done"]
    asking = create_graph_agent(ScriptedChatModel(replies, cycle=True), [confirm])
    words = "by interrupt\\('Sure\\?'\\), and without a session the run could not be resumed"
    with pytest.raises(ConfigError, match=words):
        await asking.run("go", on_approval=on_approval)
    with pytest.raises(ConfigError, match=words):
        async for _ in create_graph_agent(ScriptedChatModel(replies), [confirm]).run_stream("go"):
            pass
    kept = create_graph_agent(ScriptedChatModel(replies), [confirm], checkpointer=InMemorySaver())

    assert (await kept.session("s1").run("go")).waiting == "answer"


async def test_a_blocking_run_is_refused_in_an_event_loop() -> None:
    with pytest.raises(SyncInLoopError, match=r"agent\.run_sync .* use 'await agent\.run\(\.\.\.\)'"):
        agent().run_sync("go")


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_run_within_a_tool_stores_nothing_in_the_session_around_it(blocking: bool) -> None:
    inner, saver = agent(), InMemorySaver()

    def ask() -> str:
        """Ask."""
        return inner.run_sync("go").answer

    async def aask() -> str:
        """Ask."""
        return (await inner.run("go")).answer

    name = "ask" if blocking else "aask"
    outer = agent(asks(("1", name, {})), "done", tools=[ask if blocking else aask], checkpointer=saver)

    result = await outer.session("s1").run("go")

    assert [call.result for call in result.calls] == ["It said hello."]
    assert [(thread, [*spaces]) for thread, spaces in saver.storage.items()] == [("s1", [""])]


@pytest.mark.parametrize("outer_saver", [None, InMemorySaver()], ids=["in a run", "in a session"])
@pytest.mark.parametrize("way", ["run", "stream", "session"])
async def test_a_callback_decides_on_the_calls_of_a_run_within_a_tool(way: str, outer_saver: Any) -> None:
    inner = with_approvals()

    async def ask() -> str:
        """Ask."""
        if way == "stream":
            parts = [part async for part in inner.run_stream("go", on_approval=lambda _: True)]
            return parts[-1].result.answer if parts[-1].type == "done" else parts[-1].type
        of = inner if way == "run" else inner.session("inner", on_approval=lambda _: True)
        return (await of.run("go", on_approval=lambda _: True)).answer

    outer = agent(asks(("1", "ask", {})), "done", tools=[ask], checkpointer=outer_saver)
    result = await (outer.session(way) if outer_saver else outer).run("go")

    assert [call.result for call in result.calls] == ["done"]


async def test_a_session_within_a_tool_runs_an_input_with_an_id_once() -> None:
    inner = agent("one", "two", checkpointer=InMemorySaver()).session("inner")

    async def ask() -> str:
        """Ask."""
        return " ".join([(await inner.run("go", input_id="i1")).answer for _ in range(2)])

    result = (
        await agent(asks(("1", "ask", {})), "done", tools=[ask], checkpointer=InMemorySaver()).session("s1").run("go")
    )

    assert [call.result for call in result.calls] == ["one one"]


def _attached(made: GraphAgent[Any, Any]) -> Any:
    """The agent after LangGraph has attached a further node to it, as a program that extends a compiled graph does."""
    made.builder.add_node("extra", lambda state: {})
    made.attach_node("extra", made.builder.nodes["extra"])
    return made.copy()


COPIES: dict[str, Callable[[GraphAgent[Any, Any]], Any]] = {
    "with_config": lambda made: made.with_config(tags=["x"]),
    "copy": lambda made: made.copy(),
    "bind": lambda made: made.bind(),
    "recompiled": lambda made: made.builder.compile(),
    "built": lambda made: build_graph(ScriptedChatModel([CALL, "It said hello."]), [echo]).compile(),
    "attached": _attached,
}


@pytest.mark.parametrize("way", COPIES)
async def test_a_copy_of_an_agent_keeps_its_runs(way: str) -> None:
    result = await COPIES[way](agent()).run("go")

    assert (result.answer, [call.result for call in result.calls]) == ("It said hello.", ["hello"])


async def test_a_node_of_another_graph_is_an_agent_as_before() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent(config=TEXT_MODE))
    graph.add_edge(START, "agent")

    state = await graph.compile().ainvoke({"messages": [HumanMessage("go")]})

    assert state["messages"][-1].text == "It said hello."


async def test_a_tag_of_a_copy_reaches_its_runs() -> None:
    seen: list[Any] = []

    def tagged() -> str:
        """Return ok."""
        seen.extend(get_config()["tags"])
        return "ok"

    made = agent(asks(("1", "tagged", {})), "done", tools=[tagged])

    await made.with_config(tags=["mine"]).run("go")

    assert "mine" in seen


async def test_a_context_overrides_a_run() -> None:
    result = await agent(CALL, "No more actions.", "Best effort.").run("go", context=AgentContext(max_steps=1))

    assert (result.stop_reason, result.iterations) == ("step_limit", 1)


async def test_ainvoke_works_as_without_the_methods() -> None:
    state = await agent().ainvoke(says("go"))

    assert state["messages"][-1].text == "It said hello."
