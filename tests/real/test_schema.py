"""A real small model with replies that its server forces into a JSON schema. Nothing here depends on its words."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, Session, create_graph_agent
from tests.real.proxy import recording_proxy
from tests.real.questions import TOOLS, ask_model, load_questions
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


async def test_a_sample_of_the_questions_is_answered_with_calls(local_model: ChatOpenAI) -> None:
    asked = [question for question in load_questions() if question.tool is not None][::9]
    outcomes = [await ask_model(question, local_model, LoopConfig(max_steps=1)) for question in asked]

    assert sum(bool(outcome.calls) for outcome in outcomes) >= len(asked) - 1
