"""A real small model with replies that its server forces into a JSON schema. Nothing here depends on its words."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, Session, create_graph_agent
from tests.real.proxy import recording_proxy
from tests.real.questions import TOOLS, Score, ask_model, load_questions
from tests.support.openai_stub import open_chat_model

pytestmark = pytest.mark.real
CITIES = ("Bergen", "Oslo", "Paris", "Tokyo", "Lima")


class City(BaseModel):
    """A city."""

    name: str
    country: str


def session_of(model: Any, *, response_format: Any = None, tools: Any = (), **config: Any) -> Session:
    settings = LoopConfig(**{"max_output_tokens": 80, **config})
    agent = create_graph_agent(
        model, tools=list(tools), response_format=response_format, config=settings, checkpointer=InMemorySaver()
    )
    return Session(agent, "s")


async def test_five_of_five_answers_fit_a_response_format(local_model: ChatOpenAI) -> None:
    results = [
        await session_of(local_model, response_format=City).run(f"Give the name and the country of {city}.")
        for city in CITIES
    ]

    assert [type(result.structured_response) for result in results] == [City] * 5


async def test_a_call_in_text_is_made_by_the_schema_of_the_tools(local_server: str) -> None:
    with recording_proxy(local_server) as proxy:
        async with open_chat_model(proxy.base_url, "local") as model:
            session = session_of(model, tools=TOOLS, tool_calling="text", max_steps=1)
            await session.run("What is the weather in Bergen?")

    called = [event["name"] for event in await session.events() if event["type"] == "tool_call"]
    assert ("response_format" in proxy.bodies[0], len(called) >= 1) == (True, True)
    assert set(called) <= {tool.__name__ for tool in TOOLS}


async def test_the_users_stop_sequence_is_sent_with_calls_in_text(local_server: str) -> None:
    with recording_proxy(local_server) as proxy:
        async with open_chat_model(proxy.base_url, "local") as model:
            config: dict[str, Any] = {"tool_calling": "text", "structured_output": "prompt", "stop": ["###"]}
            await session_of(model, tools=TOOLS, max_steps=1, **config).run("Hello!")

    assert proxy.bodies[0]["stop"][0] == "###"


async def test_a_wave_plan_by_schema_is_valid(local_server: str) -> None:
    with recording_proxy(local_server) as proxy:
        async with open_chat_model(proxy.base_url, "local") as model:
            session = session_of(model, tools=TOOLS, tool_calling="wave", max_steps=1, max_output_tokens=200)
            result = await session.run("What is the weather in Bergen, and what time is it there?")

    events = await session.events()
    called = [event["name"] for event in events if event["type"] == "tool_call"]
    # A plan that is not valid is sent back, and would be the second request.
    plans = ["response_format" in body for body in proxy.bodies]
    assert (result.status, plans, {*called} <= {tool.__name__ for tool in TOOLS}) == ("COMPLETED", [True, False], True)
    assert called


async def test_the_answer_after_a_call_holds_its_result(local_model: ChatOpenAI) -> None:
    session = session_of(local_model, tools=TOOLS, tool_calling="text", max_steps=3)
    result = await session.run("What is the weather in Bergen?")

    called = [event["name"] for event in await session.events() if event["type"] == "tool_call"]
    assert (result.status, called, "12" in result.answer) == ("COMPLETED", ["weather"], True)


async def test_questions_are_answered_with_calls_where_they_need_one(local_server: str) -> None:
    questions = load_questions()
    asked = [question for question in questions if question.tool is not None][::3]
    others = [question for question in questions if question.tool is None]
    # By this name, the model is known to lack tools.
    async with open_chat_model(local_server, "smollm2:135m") as model:
        config = LoopConfig(max_steps=1, max_output_tokens=60)
        outcomes = [await ask_model(question, model, config) for question in [*asked, *others]]

    found = Score(outcomes)
    # Another processor rounds otherwise, which may change one answer.
    assert (found.called >= 7, found.right >= 4, found.quiet >= 3) == (True, True, True), str(found)
