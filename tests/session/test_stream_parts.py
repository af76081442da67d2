"""Parts of `Session.stream` that tools and delegates emit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError
from typing import Any, get_args

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolRuntime
from langgraph.types import interrupt

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.history.call_events import result_event
from graph_agent.session.results import (
    CallState,
    Custom,
    DelegatePart,
    Done,
    EventAdded,
    Part,
    Progress,
    RunPart,
    Token,
)
from graph_agent.session.stream_parts import StreamParts
from tests.support.agents import asks, echo, says, thread

END = ["No more actions.", "Done."]


@tool
def asks_person(text: str) -> str:
    """Ask a person."""
    return str(interrupt(text))


@pytest.mark.parametrize("follows", ["answer", "new input"])
async def test_events_after_a_wave_that_waited_have_their_index_in_the_history(follows: str) -> None:
    wave = asks(("a", "asks_person", {"text": "Which?"}), ("b", "echo", {"text": "x"}))
    model = ScriptedChatModel([wave, *END])
    talk = Session(create_graph_agent(model, tools=[asks_person, echo], checkpointer=InMemorySaver()), "s1")
    await talk.run("go")

    parts = talk.stream_resume("This one.") if follows == "answer" else talk.stream("Never mind.")
    streamed = [part.event async for part in parts if isinstance(part, EventAdded)]

    assert streamed == await talk.events(after=4)


@tool
async def writes(text: str) -> str:
    """Write to the stream."""
    get_stream_writer()({"half": text})
    get_stream_writer()(50)
    return text


@tool
def writes_blocking(text: str) -> str:
    """Write to the stream from a thread."""
    get_stream_writer()({"half": text})
    get_stream_writer()(50)
    return text


@tool
async def writes_by_its_runtime(text: str, runtime: ToolRuntime) -> str:
    """Write to the stream by the runtime's writer."""
    runtime.stream_writer({"half": text})
    runtime.stream_writer(50)
    return text


def session(model: BaseChatModel | list[str], *, tools: Any = (), delegates: Any = (), **config: Any) -> Session:
    graph = create_graph_agent(
        ScriptedChatModel(model) if isinstance(model, list) else model,
        tools=tools,
        delegates=delegates,
        config=LoopConfig(**{"finalize": "compose", **config}),
        checkpointer=InMemorySaver(),
    )
    return Session(graph, "s1")


async def parts(talk: Session, text: str = "go") -> list[Part]:
    return [part async for part in talk.stream(text)]


def delegated(given: list[Part], target: str) -> list[RunPart]:
    return [part.part for part in given if isinstance(part, DelegatePart) and part.target == target]


def text_of(given: list[Part] | list[RunPart]) -> str:
    return "".join(part.text for part in given if isinstance(part, Token))


@pytest.mark.parametrize("given", [writes, writes_blocking, writes_by_its_runtime], ids=lambda given: given.name)
async def test_custom_stream_data_of_tools_is_passed_on(given: BaseTool) -> None:
    talk = session([asks(("c1", given.name, {"text": "a"})), *END], tools=[given])

    seen = [part for part in await parts(talk) if isinstance(part, Custom | Progress | CallState)]

    assert seen == [
        Progress(1, "tool_call", given.name),
        CallState("c1", given.name, "started"),
        Custom({"half": "a"}),
        Custom(50),
        CallState("c1", given.name, "success"),
    ]


LOOKALIKES: list[Any] = [
    {"type": "progress", "percent": 50},
    {"type": "progress"},
    {"type": "progress", "step": 1, "action": "tool_call", "target": "x", "more": 1},
    {"type": "delegation_progress", "id": "x"},
    {"type": ["progress"]},
    {1: 2},
    None,
    "text",
    ["progress"],
]


async def test_tool_data_that_resembles_progress_is_custom_data() -> None:
    @tool
    async def imitates() -> str:
        """Write what looks like progress."""
        for each in LOOKALIKES:
            get_stream_writer()(each)
        return "done"

    talk = session([asks(("c1", "imitates", {})), *END], tools=[imitates])

    assert [part.data for part in await parts(talk) if isinstance(part, Custom)] == LOOKALIKES


def test_the_parts_are_a_closed_union_discriminated_by_type() -> None:
    with pytest.raises(FrozenInstanceError):
        Custom(1).data = 2  # type: ignore[misc]  # the invalid input under test

    assert [part.__dataclass_fields__["type"].default for part in get_args(Part)] == [
        "token",
        "reasoning",
        "plan_text",
        "call",
        "progress",
        "delegation_progress",
        "delegate",
        "custom",
        "event",
        "done",
    ]


def researcher(*replies: str, **options: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    script = [*(replies or [asks(("r1", "writes", {"text": "r"})), "No more actions."]), "Found it."]
    return create_graph_agent(
        ScriptedChatModel(script), tools=[writes], config=LoopConfig(finalize="compose"), **options
    )


DELEGATES = asks(("d1", "delegate_to_r", {"task": "Look."}))


def uncompiled(**options: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    return researcher().builder.compile(**options)


@pytest.mark.parametrize(
    "compiled",
    [
        uncompiled,
        lambda: uncompiled(checkpointer=False),
        lambda: uncompiled(checkpointer=True),
        lambda: uncompiled(checkpointer=InMemorySaver()),
    ],
    ids=["inherits", "keeps nothing", "keeps with its parent", "a saver of its own"],
)
async def test_delegate_parts_carry_the_delegates_name(compiled: Any) -> None:
    talk = session([DELEGATES, *END], delegates=[GraphDelegate("r", "R.", compiled())])

    seen = await parts(talk)

    theirs = delegated(seen, "r")
    events = [part.event["type"] for part in theirs if isinstance(part, EventAdded)]
    assert {
        "ids": {part.id for part in seen if isinstance(part, DelegatePart)},
        "own text": text_of(seen),
        "own calls": [part for part in seen if isinstance(part, CallState)],
        "own custom": [part for part in seen if isinstance(part, Custom)],
        "their text": text_of(theirs),
        "their tokens": len([part for part in theirs if isinstance(part, Token)]) > 1,
        "their work": [part for part in theirs if isinstance(part, Progress | Custom | CallState)],
        "their events": events,
        "seq": [part.event["seq"] for part in theirs if isinstance(part, EventAdded)],
    } == {
        "ids": {"d1"},
        "own text": "Done.",
        "own calls": [CallState("d1", "delegate_to_r", "started"), CallState("d1", "delegate_to_r", "success")],
        "own custom": [],
        "their text": "Found it.",
        "their tokens": True,
        "their work": [
            Progress(1, "tool_call", "writes"),
            CallState("r1", "writes", "started"),
            Custom({"half": "r"}),
            Custom(50),
            CallState("r1", "writes", "success"),
        ],
        "their events": [
            "user_message",
            "status",
            "plan",
            "tool_call",
            "tool_result",
            "plan",
            "agent_response",
            "status",
        ],
        "seq": list(range(8)),
    }


async def test_parts_come_while_the_delegate_runs() -> None:
    talk = session([DELEGATES, *END], delegates=[GraphDelegate("r", "R.", researcher())])

    seen = await parts(talk)

    last = max(at for at, part in enumerate(seen) if isinstance(part, DelegatePart))
    answered = next(at for at, part in enumerate(seen) if part == CallState("d1", "delegate_to_r", "success"))
    assert last < answered


async def test_delegates_of_one_wave_are_distinguished() -> None:
    wave = asks(("d1", "delegate_to_r", {"task": "x"}), ("d2", "delegate_to_q", {"task": "y"}))
    delegates = [GraphDelegate(name, "D.", researcher("No more actions.")) for name in "rq"]
    talk = session([wave, *END], delegates=delegates)

    seen = await parts(talk)

    pairs = {(part.id, part.target) for part in seen if isinstance(part, DelegatePart)}
    assert (pairs, text_of(delegated(seen, "r")), text_of(delegated(seen, "q")), text_of(seen)) == (
        {("d1", "r"), ("d2", "q")},
        "Found it.",
        "Found it.",
        "Done.",
    )


async def test_a_delegates_delegate_is_within_its_parts() -> None:
    deep = GraphDelegate("deep", "D.", researcher())
    middle = create_graph_agent(
        ScriptedChatModel([asks(("e1", "delegate_to_deep", {"task": "x"})), "No more actions.", "Passed on."]),
        delegates=[deep],
        config=LoopConfig(finalize="compose"),
    )
    talk = session([DELEGATES, *END], delegates=[GraphDelegate("r", "R.", middle)], max_delegation_depth=2)

    seen = await parts(talk)

    theirs: list[Any] = delegated(seen, "r")
    inner = delegated(theirs, "deep")
    assert (text_of(seen), text_of(theirs), text_of(inner), [part for part in inner if isinstance(part, Custom)]) == (
        "Done.",
        "Passed on.",
        "Found it.",
        [Custom({"half": "r"}), Custom(50)],
    )


class Counting(ScriptedChatModel):
    """Counts the calls that are streamed."""

    streamed: int = 0

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.streamed += 1
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


def foreign(model: BaseChatModel) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A graph that is no agent of this package, with fields of its own that have our names."""

    class State(MessagesState):
        events: list[Any]

    async def think(state: State) -> dict[str, Any]:
        get_stream_writer()({"thinking": True})
        return {"messages": [await model.ainvoke(state["messages"])], "events": ["mine", {"type": "odd"}]}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    return graph.compile()


async def test_a_graph_of_any_kind_is_passed_on() -> None:
    model = Counting(responses=["Thought so."])
    talk = session([DELEGATES, *END], delegates=[GraphDelegate("r", "R.", foreign(model))])

    seen = await parts(talk)

    theirs = delegated(seen, "r")
    others = [part for part in theirs if not isinstance(part, Token)]
    assert (text_of(theirs), others, text_of(seen)) == ("Thought so.", [Custom({"thinking": True})], "Done.")


async def test_a_delegate_is_not_streamed_without_a_consumer() -> None:
    model = Counting(responses=["Thought so."])
    talk = session([DELEGATES, *END], delegates=[GraphDelegate("r", "R.", foreign(model))])

    result = await talk.run("go")

    assert (result.answer, model.streamed) == ("Done.", 0)


async def test_the_graphs_own_streams_hold_nothing_of_a_delegate() -> None:
    talk = session([DELEGATES, *END], delegates=[GraphDelegate("r", "R.", researcher())])

    stream: Any = talk.graph.astream(says("go"), thread(), stream_mode=["custom", "messages"])
    progress, *seen = [chunk if mode == "custom" else chunk[0] async for mode, chunk in stream]

    kinds = (True, False)
    texts = ["".join(one.text for one in seen if (one.type == "tool") is of_tool) for of_tool in kinds]
    assert (progress, texts) == (
        {"type": "progress", "step": 1, "action": "delegate", "target": "r"},
        ["Found it.", "Done."],
    )


async def test_a_delegate_that_asks_a_person_is_passed_on_before_and_after() -> None:
    @tool
    async def ask(text: str) -> str:
        """Ask the person."""
        get_stream_writer()("asking")
        return str(interrupt(text))

    inner = create_graph_agent(
        ScriptedChatModel([asks(("a1", "ask", {"text": "?"})), "No more actions.", "They said yes."]),
        tools=[ask],
        config=LoopConfig(finalize="compose"),
    )
    talk = session([DELEGATES, *END], delegates=[GraphDelegate("r", "R.", inner)])

    before = await parts(talk)
    after = [part async for part in talk.stream_resume("yes")]

    custom = [[part for part in delegated(given, "r") if isinstance(part, Custom)] for given in (before, after)]
    assert (custom, text_of(delegated(before, "r")), text_of(delegated(after, "r")), text_of(after)) == (
        [[Custom("asking")], [Custom("asking")]],
        "",
        "They said yes.",
        "Done.",
    )


async def test_being_watched_is_not_stored() -> None:
    talk = session([asks(("c1", "echo", {"text": "a"})), *END], tools=[echo])

    await parts(talk)

    saver: Any = talk.graph.checkpointer
    stored = [found async for found in saver.alist({"configurable": {"thread_id": "s1"}})]
    assert ("watched" in repr([found.metadata for found in stored]), len(stored) > 1) == (False, True)


async def test_a_delegates_usage_is_the_same_when_it_is_watched() -> None:
    def talk() -> Session:
        reply = AIMessage("Thought.", usage_metadata={"input_tokens": 7, "output_tokens": 3, "total_tokens": 10})
        return session([DELEGATES, *END], delegates=[GraphDelegate("r", "R.", foreign(ScriptedChatModel([reply])))])

    watched = (await parts(talk()))[-1]

    assert isinstance(watched, Done)
    assert watched.result.usage == (await talk().run("go")).usage


def test_a_fast_call_is_reported_before_the_event_of_a_slow_call_before_it() -> None:
    stream_parts = StreamParts("s1", 3, ["slow", "fast"])

    def ended(id_: str) -> list[Any]:
        update = {"tools": {"events": [result_event(id_, "look", "success", id_, 1)]}}
        return [
            part.event["id"] if isinstance(part, EventAdded) else part  # type: ignore[typeddict-item]  # of a result
            for part in stream_parts.take("updates", update)
        ]

    assert (ended("fast"), ended("slow")) == (
        [CallState("fast", "look", "success")],
        ["slow", CallState("slow", "look", "success"), "fast"],
    )


async def test_the_tokens_of_a_stopped_answer_have_the_reason_of_the_stop() -> None:
    model = ScriptedChatModel(["An answer of so many words that it takes several pieces."])
    talk = Session(create_graph_agent(model, checkpointer=InMemorySaver()), "s1")
    seen: list[Part] = []

    async for part in talk.stream("go"):
        seen.append(part)
        if isinstance(part, Token):
            await talk.abort()

    [answer] = [part.result.answer for part in seen if isinstance(part, Done)]
    tokens = [part.text for part in seen if isinstance(part, Token)]
    assert ("".join(tokens), answer.endswith("\n\nStopped on request")) == (answer, True)
