"""Odd text and values from users, models and tools: nothing is lost, and checkpoints and requests stay valid."""

from __future__ import annotations

import asyncio
import json
import reprlib
import time
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import before_model
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from graph_agent import ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.base._internal.lenient_json import parse_lenient_json
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.settings.response_format import ResponseSchema
from graph_agent.core.state.messages import order_results, rewrite
from graph_agent.errors import InputError
from graph_agent.persistence import open_saver
from tests.support.agents import add, asks, dialogue, echo, kinds, says, thread
from tests.support.openai_stub import OpenAIStub
from tests.support.result_texts import UNKNOWN


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (10**30, str(10**30)),
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
        (2**64, str(2**64)),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
    ids=str,
)
def test_numbers_that_no_store_holds_become_text(value: Any, stored: Any) -> None:
    assert to_json_safe({"a": [value]}) == {"a": [stored]}


def test_too_deep_nesting_is_a_clear_error() -> None:
    value: Any = []
    for _ in range(5000):
        value = [value]

    with pytest.raises(ValueError, match="more than 200 levels deep"):
        to_json_safe(value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": 10**30, "b": 1}, ("success", str(10**30 + 1))),
        ({"a": json.loads("[" * 400 + "]" * 400), "b": 1}, ("error", "The arguments cannot be used: ")),
    ],
    ids=["huge integer", "deep"],
)
async def test_odd_arguments_reach_the_tool_or_the_model(
    arguments: Any, expected: tuple[str, str], tmp_path: Path
) -> None:
    reply = AIMessage("", tool_calls=[{"id": "1", "name": "add", "args": arguments}])
    async with open_saver(f"sqlite:///{tmp_path}/odd.db") as saver:
        model = ScriptedChatModel([reply, "No more actions.", "Done."])
        graph = create_graph_agent(model, tools=[add], checkpointer=saver)

        result = await graph.ainvoke(says("go"), thread())

    answer = next(message for message in result["messages"] if isinstance(message, ToolMessage))
    assert (answer.status, answer.text.startswith(expected[1]), result["status"]) == (expected[0], True, "COMPLETED")


async def test_text_that_no_utf8_holds_does_not_poison_a_session(tmp_path: Path) -> None:
    reply = AIMessage("m \udc00", tool_calls=[{"id": "i\ud800", "name": "echo", "args": {"text": "x"}}])
    async with open_saver(f"sqlite:///{tmp_path}/odd.db") as saver:
        model = ScriptedChatModel([reply, "No more actions.", "a \ud83d", "No more actions.", "Fine."])
        graph = create_graph_agent(model, tools=[echo], checkpointer=saver)
        await graph.ainvoke(says("u \ud83d\x00"), thread())

        result = await graph.ainvoke(says("again"), thread())

    sent = "".join(message.text for request in model.requests for message in request.messages)
    kept = dialogue(result["messages"])
    assert (sent.encode() and True, kept[1:4], kept[-1]) == (
        True,
        [("ai", "m \ufffd"), ("tool", "x"), ("ai", "a \ufffd")],
        ("ai", "Fine."),
    )


@pytest.mark.parametrize(
    ("update", "refused"),
    [
        ({"messages": [ToolMessage("other", tool_call_id="zzz")]}, "it adds an object of type ToolMessage"),
        ({"messages": [AIMessage("hi")]}, "it adds an object of type AIMessage"),
        ({"messages": [42]}, "it adds an object of type int"),
        ({"messages": [], "events": []}, "'events' is no own state field of the agent"),
    ],
    ids=["foreign result", "message", "no message", "state"],
)
async def test_a_command_cannot_break_the_history(update: dict[str, Any], refused: str) -> None:
    @tool
    async def note(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Answer with a command."""
        mine = ToolMessage("noted", tool_call_id=call_id)
        return Command(update={**update, "messages": [mine, *update["messages"]]})

    reply = AIMessage("", tool_calls=[{"id": "1", "name": "note", "args": {}}])
    graph = create_graph_agent(ScriptedChatModel([reply, "No more actions.", "Done."]), tools=[note])

    result = await graph.ainvoke(says("go"))

    assert dialogue(result["messages"])[2:] == [
        ("tool", f"The tool ran, but this agent does not allow the changes it requested: {refused}."),
        ("ai", "Done."),
    ]


async def test_a_provider_gets_text_it_can_read() -> None:
    with OpenAIStub("No more actions.", "Hello.") as stub:
        async with stub.chat_model() as model:
            graph = create_graph_agent(model, tools=[echo])
            result = await graph.ainvoke(says("hi \ud83d\x00"))

    sent = [body["messages"][-1]["content"] for body in stub.bodies]
    assert (sent, result["status"]) == (["hi \ufffd\ufffd"] * 2, "COMPLETED")


def _asking(*ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": id_, "name": "echo", "args": {}} for id_ in ids])


def _result(id_: str) -> ToolMessage:
    return ToolMessage(f"result {id_}", tool_call_id=id_, name="echo")


def _settled(messages: list[AnyMessage]) -> list[AnyMessage]:
    """The history as an agent leaves it that receives it with a new input."""
    graph = create_graph_agent(ScriptedChatModel(["No more actions.", "Done."]), tools=[echo])
    result = asyncio.run(graph.ainvoke({"messages": [*messages, HumanMessage("And now?")]}))
    return list(result["messages"][:-2])


def _is_sound(messages: list[AnyMessage]) -> bool:
    """Whether every run of results answers the calls of the message before it, each of them once."""
    open_: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_:
                return False
            open_.remove(message.tool_call_id)
        elif open_:
            return False
        elif isinstance(message, AIMessage):
            open_ = [call["id"] or "" for call in message.tool_calls]
    return not open_


_IDS = st.sampled_from("abcd")
_HISTORIES = st.lists(
    st.one_of(
        st.builds(HumanMessage, st.just("hm")),
        st.builds(lambda ids: _asking(*ids), st.lists(_IDS, max_size=3, unique=True)),
        st.builds(_result, _IDS),
    ),
    max_size=12,
)


@given(_HISTORIES)
def test_any_history_is_settled_so_that_providers_take_it(messages: list[AnyMessage]) -> None:
    settled = _settled(messages)

    others = [message for message in messages if not isinstance(message, ToolMessage)]
    kept = [message for message in settled if not isinstance(message, ToolMessage)]
    assert (_is_sound(settled), list(map(id, kept))) == (True, list(map(id, others)))


@given(_HISTORIES)
def test_a_sound_history_is_left_alone(messages: list[AnyMessage]) -> None:
    sound = _settled(messages)

    assert _settled(sound) == sound


def test_a_result_goes_to_the_nearest_call_before_it() -> None:
    first, word, again, late, orphan = _asking("a"), HumanMessage("u"), _asking("a", "b"), _result("a"), _result("x")

    assert order_results([_result("b"), first, word, again, HumanMessage("v"), orphan, late]) == [
        first,
        word,
        again,
        late,
        HumanMessage("v"),
    ]


def test_a_rewrite_takes_out_no_more_than_it_must() -> None:
    a, b, c, d = (HumanMessage(name, id=name) for name in "abcd")

    writes: list[Any] = [rewrite([a, b, c], [a, c]), rewrite([a, b, c, d], [a, d, c]), rewrite([a], [a, b])]
    assert writes == [
        [RemoveMessage(id="b")],
        [RemoveMessage(id="b"), RemoveMessage(id="c"), RemoveMessage(id="d"), d, c],
        [b],
    ]


async def test_a_given_history_out_of_order_is_put_in_order(tmp_path: Path) -> None:
    given_messages = [_result("x"), _asking("a", "b"), HumanMessage("go on"), _result("a")]
    async with open_saver(f"sqlite:///{tmp_path}/odd.db") as saver:
        model = ScriptedChatModel(["No more actions.", "Done."])
        graph = create_graph_agent(model, tools=[echo], checkpointer=saver)
        await graph.ainvoke({"messages": given_messages}, thread())

        stored = (await graph.aget_state(thread())).values["messages"]
        events = await SessionMemory(graph).get_session_events("s1")

    assert (dialogue(stored), dialogue(model.requests[0].messages[1:]), kinds(events)[:3]) == (
        [("ai", ""), ("tool", "result a"), ("tool", UNKNOWN), ("human", "go on"), ("ai", "Done.")],
        [("ai", ""), ("tool", "result a"), ("tool", UNKNOWN), ("human", "go on")],
        ["warning", "tool_result", "user_message"],
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Here it is [1]: {"a": 1}. Enjoy!', {"a": 1}),
        ('Here: [{"a": 1}]', [{"a": 1}]),
        ('{"a": [1], "b": 2,}', {"a": [1], "b": 2}),
        ('[{"a": 1},]', [{"a": 1}]),
        ("{'a': True, b: [1, 2,],}", {"a": True, "b": [1, 2]}),
        ('{"a": "cut sho', {"a": "cut sho"}),
        ('{"a": "x "quoted" y"}', {"a": 'x "quoted" y'}),
        ("null", None),
        ('{"a": ["' + "b" * 50_000, {"a": ["b" * 50_000]}),
    ],
    ids=[
        "plain",
        "fenced",
        "amid prose",
        "list amid prose",
        "comma",
        "comma in a list",
        "slips",
        "cut",
        "quotes",
        "null",
        "long and cut",
    ],
)
def test_json_is_read_however_it_was_written(text: str, value: Any) -> None:
    assert parse_lenient_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "{" * 60_000,
        "[" * 60_000,
        "{" * 100 + '"' * 900,
        '["' + '"a":' * 20_000,
        '{"a":' * 20_000,
        "```" * 20_000,
        "{" + "1" * 60_000,
        "no JSON",
        "",
    ],
    ids=["braces", "brackets", "quotes", "keys", "nested", "fences", "digits", "prose", "empty"],
)
def test_hostile_answers_cost_little_and_are_refused(text: str) -> None:
    begun = time.process_time()

    with pytest.raises(ValueError, match=r"^(The reply holds no JSON|the reply: )"):
        ResponseSchema({"type": "object", "required": ["q"]}).read(text)

    assert time.process_time() - begun < 2


def test_an_answers_numbers_can_be_stored() -> None:
    assert ResponseSchema({"type": "object"}).read(f'{{"a": {10**30}}}') == {"a": str(10**30)}


# Inputs that no run can use


async def parts_of(stream: Any) -> list[Any]:
    return [part async for part in stream]


ENTRY_POINTS: dict[str, Any] = {
    "invoke": lambda agent, given, config: asyncio.to_thread(agent.invoke, given, config),
    "ainvoke": lambda agent, given, config: agent.ainvoke(given, config),
    "stream": lambda agent, given, config: asyncio.to_thread(lambda: list(agent.stream(given, config))),
    "astream": lambda agent, given, config: parts_of(agent.astream(given, config)),
    "astream_events": lambda agent, given, config: parts_of(agent.astream_events(given, config, version="v2")),
    "batch": lambda agent, given, config: asyncio.to_thread(agent.batch, [given], config),
    "abatch": lambda agent, given, config: agent.abatch([given], config),
}
NO_FIELDS = "has none of this agent's fields (messages)"
NO_MESSAGE = "has no message, and there is no stored run or conversation to continue"
NO_MESSAGES = "has messages that cannot be used ("
UNUSABLE: list[tuple[Any, str]] = [
    ("hello", NO_FIELDS),
    ({"input": "How are you?"}, NO_FIELDS),
    ({"question": 1}, NO_FIELDS),
    ([HumanMessage("x")], NO_FIELDS),
    (HumanMessage("x"), NO_FIELDS),
    (5, NO_FIELDS),
    (None, NO_MESSAGE),
    ({}, NO_MESSAGE),
    ({"messages": []}, NO_MESSAGE),
    ({"messages": [RemoveMessage("1")]}, NO_MESSAGE),
    (Command(resume="yes"), NO_MESSAGE),
    (Command(goto="plan"), NO_MESSAGE),
    (Command(), "has neither an answer nor an update"),
    ({"messages": None}, NO_MESSAGES),
    ({"messages": " "}, NO_MESSAGES),
    ({"messages": [None]}, NO_MESSAGES),
    ({"messages": {"text": "x"}}, NO_MESSAGES),
    ({"messages": [("usr", "x")]}, NO_MESSAGES),
    ({"messages": [("user", None)]}, NO_MESSAGES),
    ({"messages": (HumanMessage("x"), HumanMessage("y"))}, NO_MESSAGES),
    (Command(update={"messages": None}), NO_MESSAGES),
]


@pytest.mark.parametrize("saver", [None, InMemorySaver], ids=["no saver", "saver"])
@pytest.mark.parametrize(("given", "why"), UNUSABLE, ids=lambda value: repr(value)[:40])
async def test_an_unusable_input_gets_the_right_call_at_every_entry_point(given: Any, why: str, saver: Any) -> None:
    agent = create_graph_agent(ScriptedChatModel(["x"]), checkpointer=saver and saver())

    raised = {}
    for name, enter in ENTRY_POINTS.items():
        with pytest.raises(InputError) as caught:
            await enter(agent, given, thread())
        raised[name] = str(caught.value)

    text = given["input"] if isinstance(given, dict) and "input" in given else "hello"
    call = f"Write agent.ainvoke({{'messages': [('user', {text!r})]}}), or Session(agent, 's1').run('hello')."
    begins = f"The input {reprlib.repr(given)} {why}"
    assert [name for name, text in raised.items() if not (text.startswith(begins) and text.endswith(call))] == []


async def test_an_input_with_a_value_that_checkpoints_cannot_hold_is_refused_before_it_is_stored() -> None:
    agent = create_graph_agent(ScriptedChatModel(["x"]), checkpointer=InMemorySaver())

    with pytest.raises(InputError, match="checkpoints cannot hold a message of type 'human'"):
        await agent.ainvoke({"messages": [HumanMessage("hi", additional_kwargs={"at": object()})]}, thread())

    assert (await agent.aget_state(thread())).values == {}


@pytest.mark.parametrize("given", [None, {}, {"messages": []}], ids=repr)
async def test_an_input_without_messages_continues_a_session_that_has_some(given: Any) -> None:
    agent = create_graph_agent(
        ScriptedChatModel([asks(("1", "echo", {"text": "a"})), "Done."]), [echo], checkpointer=InMemorySaver()
    )
    await agent.ainvoke(says("go"), thread(), interrupt_before=["tools"])

    ended = await agent.ainvoke(given, thread())

    assert (ended["messages"][-1].text, ended["status"]) == ("Done.", "COMPLETED")


async def test_middleware_may_add_the_first_message() -> None:
    @before_model
    def ask(state: Any, runtime: Any) -> Any:
        return {"messages": [HumanMessage("Good morning.")]}

    agent = create_graph_agent(ScriptedChatModel(["Hello."]), middleware=[ask])

    assert dialogue((await agent.ainvoke({"messages": []}))["messages"]) == [
        ("human", "Good morning."),
        ("ai", "Hello."),
    ]
