"""Steering, follow-ups, aborts and budgets during an answer streamed by planning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.session.results import Done, Part, Token
from tests.support.agents import asks, dialogue, echo, kinds, thread
from tests.support.gates import Gate, GatedModel

CALL = asks(("c1", "echo", {"text": "x"}))


def talk_with(model: GatedModel, **config: Any) -> Session:
    graph = create_graph_agent(model, tools=[echo], config=LoopConfig(**config), checkpointer=InMemorySaver())
    return Session(graph, "s1")


async def parts_of(talk: Session) -> list[Part]:
    return [part async for part in talk.stream("go")]


def shown(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Token))


async def messages_of(talk: Session) -> list[Any]:
    messages: list[Any] = (await talk.graph.aget_state(thread())).values["messages"]
    return messages


def contents_of(events: list[Any]) -> list[tuple[str, Any]]:
    return [(event["type"], event["content"]) for event in events if "content" in event]


@pytest.mark.parametrize("finalize", ["auto", "direct"])
async def test_steering_while_an_answer_is_streamed_is_answered_after_it(finalize: Any) -> None:
    gate = Gate()
    model = GatedModel(["Ten degrees.", "Fifty in Fahrenheit."], within={1: gate})
    talk = talk_with(model, finalize=finalize)
    running = asyncio.create_task(parts_of(talk))
    await gate.reached()

    await talk.steer("In Fahrenheit, please.")
    gate.open()
    parts = await running

    model.assert_spent()
    conversation = [
        ("human", "go"),
        ("ai", "Ten degrees."),
        ("human", "In Fahrenheit, please."),
        ("ai", "Fifty in Fahrenheit."),
    ]
    newest = model.requests[1].messages[-2:]
    assert (
        shown(parts),
        dialogue(await messages_of(talk)),
        contents_of(await talk.events()),
        [message.text for message in newest],
    ) == (
        "Ten degrees.Fifty in Fahrenheit.",
        conversation,
        [
            ("user_message", "go"),
            ("agent_response", "Ten degrees."),
            ("steering", "In Fahrenheit, please."),
            ("agent_response", "Fifty in Fahrenheit."),
        ],
        ["Ten degrees.", "While you were working, the user said: In Fahrenheit, please."],
    )


@pytest.mark.parametrize("finalize", ["auto", "direct"])
async def test_steering_before_anything_is_shown_replaces_the_answer(finalize: Any) -> None:
    gate = Gate()
    model = GatedModel(["Ten degrees.", "Fifty in Fahrenheit."], before={1: gate})
    talk = talk_with(model, finalize=finalize)
    running = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.steer("In Fahrenheit, please.")
    gate.open()
    result = await running

    assert (result.answer, dialogue(await messages_of(talk)), result.usage["model_calls"]) == (
        "Fifty in Fahrenheit.",
        [("human", "go"), ("human", "In Fahrenheit, please."), ("ai", "Fifty in Fahrenheit.")],
        2,
    )


async def test_steering_while_an_answer_is_streamed_may_lead_to_calls() -> None:
    gate = Gate()
    model = GatedModel(["I know.", CALL, "It says x."], within={1: gate})
    talk = talk_with(model)
    running = asyncio.create_task(parts_of(talk))
    await gate.reached()

    await talk.steer("Check it.")
    gate.open()
    await running

    assert dialogue(await messages_of(talk)) == [
        ("human", "go"),
        ("ai", "I know."),
        ("human", "Check it."),
        ("ai", ""),
        ("tool", "x"),
        ("ai", "It says x."),
    ]


async def test_a_follow_up_comes_after_a_streamed_answer() -> None:
    gate = Gate()
    model = GatedModel(["One.", "Two."], within={1: gate})
    talk = talk_with(model)
    running = asyncio.create_task(parts_of(talk))
    await gate.reached()

    await talk.follow_up("and?")
    gate.open()
    parts = await running

    assert (shown(parts), dialogue(await messages_of(talk))) == (
        "One.Two.",
        [("human", "go"), ("ai", "One."), ("human", "and?"), ("ai", "Two.")],
    )


@pytest.mark.parametrize("finalize", ["auto", "direct"])
async def test_an_abort_keeps_what_was_shown_of_the_answer(finalize: Any) -> None:
    gate = Gate()
    model = GatedModel(["One two three.", "Here I am."], within={1: gate})
    talk = talk_with(model, finalize=finalize)
    running = asyncio.create_task(parts_of(talk))
    await gate.reached()

    await talk.abort()
    parts = await running

    last = parts[-1]
    assert isinstance(last, Done)
    [_, answer] = await messages_of(talk)
    assert (shown(parts), last.result.answer, last.result.status, answer.text) == (
        "One\n\nStopped on request",
        "One\n\nStopped on request",
        "ABORTED",
        "One\n\nStopped on request",
    )
    assert last.result.usage["model_calls"] == 1
    assert (await talk.run("still there?")).answer == "Here I am."


async def test_the_deadline_keeps_what_was_shown_of_the_answer() -> None:
    gate = Gate()
    model = GatedModel(["One two three."], within={1: gate})
    talk = talk_with(model, deadline_s=2)

    parts = await parts_of(talk)

    last = parts[-1]
    assert isinstance(last, Done)
    assert (last.result.answer, last.result.stop_reason, len(model.requests)) == (
        "One\n\nReached the deadline (2.0 s)",
        "deadline",
        1,
    )


async def test_a_token_budget_ends_an_input_whose_answer_planning_gave_as_completed() -> None:
    reply = AIMessage("Hello.", usage_metadata={"input_tokens": 90, "output_tokens": 20, "total_tokens": 110})
    talk = talk_with(GatedModel([reply]), max_tokens_total=100)

    result = await talk.run("go")

    assert (result.answer, result.stop_reason, kinds(await talk.events()).count("limit")) == ("Hello.", "completed", 0)
