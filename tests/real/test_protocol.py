"""A real small model through an agent's defaults. Nothing here depends on its words."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from tests.real.proxy import recording_proxy
from tests.real.questions import weather
from tests.support.openai_stub import open_chat_model

pytestmark = pytest.mark.real


def session_of(model: Any, *tools: Any, **config: Any) -> Session:
    """A session of an agent whose replies have a few words, which take a second."""
    settings = LoopConfig(**{"max_output_tokens": 24, **config})
    return Session(create_graph_agent(model, tools=list(tools), config=settings, checkpointer=InMemorySaver()), "s")


async def warnings_of(session: Session) -> list[str]:
    return [str(event["message"]) for event in await session.events() if event["type"] == "warning"]


async def test_hello_is_answered_whole_with_the_servers_usage(local_model: ChatOpenAI) -> None:
    result = await session_of(local_model).run("Hello!")

    usage = result.usage
    assert (bool(result.answer), result.status, usage["model_calls"]) == (True, "COMPLETED", 1)
    assert usage["input_tokens"] > 5
    assert 0 < usage["output_tokens"] <= 24


async def test_hello_is_streamed_and_its_tokens_are_the_answer(local_model: ChatOpenAI) -> None:
    parts = [part async for part in session_of(local_model).stream("Hello!")]

    tokens = [part.text for part in parts if part.type == "token"]
    done = next(part.result for part in parts if part.type == "done")
    assert ("".join(tokens).strip(), len(tokens) > 3) == (done.answer.strip(), True)
    assert done.usage["input_tokens"] > 5


async def test_dropped_tools_are_noticed_and_written_as_text(local_server: str) -> None:
    with recording_proxy(local_server) as proxy:
        async with open_chat_model(proxy.base_url, "local") as model:
            session = session_of(model, weather, max_steps=1)
            await session.run("What is the weather in Bergen?")

    dropped = [warning for warning in await warnings_of(session) if "leaves them out of the prompt" in warning]
    first, second = proxy.bodies[:2]
    assert (len(dropped), "tools" in first, "tools" in second) == (1, True, False)
    assert "weather" in str(second["messages"][0]["content"])


async def test_a_conversation_longer_than_the_window_goes_on(small_model: ChatOpenAI) -> None:
    session = session_of(small_model)
    inputs = [f"Remember number {n}: {'the sea is deep and blue, ' * 75}" for n in range(2)]

    results = [await session.run(text) for text in inputs]

    assert [(result.status, bool(result.answer)) for result in results] == [("COMPLETED", True)] * 2
    assert any("longer than" in warning for warning in await warnings_of(session))


@pytest.mark.parametrize("mode", ["native"])
async def test_the_users_stop_sequence_is_in_the_request(local_server: str, mode: Any) -> None:
    with recording_proxy(local_server) as proxy:
        async with open_chat_model(proxy.base_url, "local") as model:
            await session_of(model, weather, tool_calling=mode, stop=["###"], max_steps=1).run("Hello!")

    assert proxy.bodies[0]["stop"][0] == "###"


async def test_a_fallback_on_another_port_answers_when_the_first_server_is_gone(
    local_server: str, small_model: ChatOpenAI
) -> None:
    with recording_proxy(local_server) as proxy:
        async with open_chat_model(proxy.base_url, "local") as first:
            session = session_of(first, fallback_models=[small_model], model_retries=0)
            before = await session.run("Hello!")
            proxy.close()
            after = await session.run("Hello again!")

    switched = [warning for warning in await warnings_of(session) if warning.endswith("going on with small.")]
    found = [(each.status, bool(each.answer)) for each in (before, after)]
    assert (found, len(switched)) == ([("COMPLETED", True)] * 2, 1)
