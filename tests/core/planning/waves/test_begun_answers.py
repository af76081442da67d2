"""A structured plan that was cut off by its length: the begun answer is kept if the plan has no calls."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.models.wire.parsing.plans import read_plan
from graph_agent.waves import PlanError, PlanningResult
from tests.support.agents import echo
from tests.support.openai_stub import OpenAIStub, Reply

BEGUN = '{"status": "done", "slots": {}, "tools": [], "answer": "The long answer th'


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_the_begun_answer_of_a_plan_is_the_answer(streamed: bool) -> None:
    with OpenAIStub(Reply(text=BEGUN, finish="length")) as stub:
        async with stub.chat_model() as model:
            config = LoopConfig(tool_calling="wave")
            session = Session(create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver()), "s")
            if streamed:
                *_, last = [part async for part in session.stream("go")]
                result = last.result  # type: ignore[union-attr]  # the last part is Done
            else:
                result = await session.run("go")
            warnings = [entry["message"] for entry in await session.events() if entry["type"] == "warning"]

    assert (result.answer, result.status, result.truncated) == ("The long answer th", "COMPLETED", "length")
    assert len(warnings) == 1
    assert warnings[0].startswith("The answer was cut off at the longest length allowed")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (BEGUN, "The long answer th"),
        (BEGUN + "\\", "The long answer th"),
        (BEGUN + "\\\\", "The long answer th\\"),
        (BEGUN + "\\u00e", "The long answer th"),
        (BEGUN + "\\ud83d", "The long answer th"),
        (BEGUN + '"', "The long answer th"),
        (BEGUN + '", "reasoning": "be', "The long answer th"),
        ("```json\n" + BEGUN, "The long answer th"),
        ("<think>Hm.</think>" + BEGUN, "The long answer th"),
    ],
)
def test_an_answer_may_be_cut_off_anywhere(text: str, answer: str) -> None:
    plan = read_plan(AIMessage(text, response_metadata={"finish_reason": "length"}), PlanningResult)

    assert (plan.answer, plan.tools, plan.status) == (answer, [], "done")


@pytest.mark.parametrize(
    "text",
    [
        '{"status": "done", "tools": [], "answer": "',
        '{"status": "done", "tools": [], "reasoning": "The',
        '{"status": "done", "answer": "The long answer", "tools": [',
        '{"status": "done", "answer": "The long answer th',
        '{"status": "done", "tools": [{"id": "1", "tool": "echo", "args": {}}], "answer": "The long',
    ],
)
def test_a_cut_off_plan_with_open_calls_or_without_an_answer_is_invalid(text: str) -> None:
    with pytest.raises(PlanError, match="cut off"):
        read_plan(AIMessage(text, response_metadata={"finish_reason": "length"}), PlanningResult)
