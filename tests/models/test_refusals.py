"""Refusals of a model or a provider: the refusal is the answer, and the input does not fail."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.finish import CUT_OFF, REFUSED, refusal_text
from tests.support.agents import asks, echo
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

FILTERED = Failure(400, "The response was filtered.", code="content_filter")
CUT = Reply("It begins", finish="content_filter")
NO = Reply(refusal="I can't help with that.")
CALL = Reply(tool_calls=(("echo", {"text": "a"}),))
WARNING = "stub-model or its provider refused to answer because of the content of the request."


async def outcome_of(stub: Any, **config: Any) -> dict[str, Any]:
    """Run one input, and return the answer, the events and the usage."""
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], config=LoopConfig(**config), checkpointer=InMemorySaver())
        session = Session(graph, "s1")
        result = await session.run("go")
        events = await session.events()
    return {
        "answer": result.answer,
        "end": (result.status, result.stop_reason),
        "calls": (len(stub.requests), result.usage["model_calls"]),
        "warnings": [event["message"] for event in events if event["type"] == "warning"],
        "errors": [event for event in events if event["type"] == "error"],
    }


@pytest.mark.parametrize(
    ("reply", "answer", "counted"),
    [(FILTERED, REFUSED, 0), (CUT, REFUSED, 1), (NO, "I can't help with that.", 1)],
    ids=["error", "cut", "refusal"],
)
@pytest.mark.parametrize("mode", ["native", "text", "wave"])
@pytest.mark.parametrize("finalize", ["auto", "compose"])
async def test_a_refused_plan_is_answered_with_the_refusal(
    openai_stub: StubFactory, reply: Any, answer: str, counted: int, mode: str, finalize: str
) -> None:
    if reply is CUT and finalize == "auto" and mode != "wave":
        # The partial reply is the beginning of an answer.
        answer = f"It begins\n\n{CUT_OFF}"

    assert await outcome_of(openai_stub(reply), tool_calling=mode, temperature=0, finalize=finalize) == {
        "answer": answer,
        "end": ("COMPLETED", "completed"),
        "calls": (1, counted),
        "warnings": [WARNING],
        "errors": [],
    }


@pytest.mark.parametrize(
    ("reply", "answer", "counted"),
    [(FILTERED, REFUSED, 1), (CUT, f"It begins\n\n{CUT_OFF}", 2), (NO, "I can't help with that.", 2)],
    ids=["error", "cut", "refusal"],
)
async def test_an_answer_that_is_refused_is_an_answer(
    openai_stub: StubFactory, reply: Any, answer: str, counted: int
) -> None:
    assert await outcome_of(openai_stub("No more actions.", reply), tool_calling="native", finalize="compose") == {
        "answer": answer,
        "end": ("COMPLETED", "completed"),
        "calls": (2, counted),
        "warnings": [WARNING],
        "errors": [],
    }


@pytest.mark.parametrize(
    ("reply", "answer", "counted"),
    [
        (FILTERED, REFUSED, 1),
        (CUT, f"It begins\n\n{CUT_OFF}", 2),
        (NO, "I can't help with that.", 2),
        (Reply(finish="content_filter"), REFUSED, 2),
    ],
    ids=["error", "cut", "refusal", "empty"],
)
async def test_a_refusal_below_a_limit(openai_stub: StubFactory, reply: Any, answer: str, counted: int) -> None:
    assert await outcome_of(openai_stub(CALL, reply), max_steps=1) == {
        "answer": f"Reached maximum reasoning steps (1)\n\n{answer}",
        "end": ("ROUND_LIMIT", "step_limit"),
        "calls": (2, counted),
        "warnings": [WARNING],
        "errors": [],
    }


async def test_text_streamed_before_a_refusal_is_in_the_answer(openai_stub: StubFactory) -> None:
    stub = openai_stub("No more actions.", CUT)

    async with stub.chat_model() as model:
        session = Session(create_graph_agent(model, tools=[echo], checkpointer=InMemorySaver()), "s1")
        parts = [part async for part in session.stream("go")]

    read = "".join(part.text for part in parts if part.type == "token")
    (answer,) = [part.result.answer for part in parts if part.type == "done"]
    assert (read, answer) == (f"It begins\n\n{CUT_OFF}",) * 2


class Shape(BaseModel):
    """The schema of an answer."""

    word: str


async def test_a_refusal_is_not_repaired_for_its_schema() -> None:
    no = AIMessage("", additional_kwargs={"refusal": "No."})
    model = ScriptedChatModel([asks(("c1", "echo", {"text": "a"})), "No more actions.", no])
    graph = create_graph_agent(model, tools=[echo], response_format=Shape, checkpointer=InMemorySaver())

    result = await graph.ainvoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": "s1"}})

    assert (result["status"], result["messages"][-1].text, result["structured_response"], len(model.requests)) == (
        "COMPLETED",
        "No.",
        None,
        3,
    )


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (AIMessage("Fine.", response_metadata={"finish_reason": "stop"}), None),
        (AIMessage("Fine.", additional_kwargs={"refusal": None}), None),
        (AIMessage("", response_metadata={"stop_reason": "refusal"}), REFUSED),
        (AIMessage("", response_metadata={"stopReason": "guardrail_intervened"}), REFUSED),
        (AIMessage("", response_metadata={"finish_reason": "SAFETY"}), REFUSED),
        (AIMessage([{"type": "refusal", "refusal": "No, "}, {"type": "refusal", "refusal": "thanks."}]), "No, thanks."),
    ],
    ids=["stop", "none", "anthropic", "bedrock", "gemini", "responses"],
)
def test_refusals_are_detected_in_every_form(reply: AIMessage, text: str | None) -> None:
    assert refusal_text(reply, visible=True) == text
