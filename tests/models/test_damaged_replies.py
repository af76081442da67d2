"""Replies that compatible servers damage: names, arguments and ids of calls, choices, and ends of streams."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]


def weather(city: str = "here") -> str:
    """Return the weather in a city."""
    return f"rain in {city}"


def session_with(model: Any) -> Session:
    config = LoopConfig(model_retries=1)
    return Session(create_graph_agent(model, tools=[weather], checkpointer=InMemorySaver(), config=config), "s1")


@pytest.mark.parametrize(
    "name", [" weather ", "functions.weather", "weather<|channel|>commentary", "weatherweather", "weather"]
)
async def test_a_damaged_name_calls_its_tool(openai_stub: StubFactory, name: str) -> None:
    stub = openai_stub(Reply(tool_calls=((name, {"city": "Oslo"}),)), "Done.")
    async with stub.chat_model() as model:
        result = await session_with(model).run("go")

    asked = stub.bodies[1]["messages"][-2]["tool_calls"][0]["function"]["name"]
    assert (list(result.results.values()), asked) == (["rain in Oslo"], "weather")


async def test_a_damaged_alias_calls_its_tool(openai_stub: StubFactory) -> None:
    dotted = StructuredTool.from_function(weather, name="my.weather")
    async with openai_stub(Reply(tool_calls=(("functions.my_weather", "{}"),)), "Done.").chat_model() as model:
        output = await create_graph_agent(model, tools=[dotted]).ainvoke({"messages": [("user", "go")]})

    assert output["messages"][2].content == "rain in here"


SEVERAL = '{"city": "Oslo"}{"city": "Rome"}'


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        ("null", "rain in here"),
        ('"{\\"city\\": \\"Oslo\\"}"', "rain in Oslo"),
        ('{}{"city": "Oslo"}', "rain in Oslo"),
        (
            SEVERAL,
            {"error": f"The arguments are several JSON objects: {SEVERAL!r}. Send one JSON object for each call."},
        ),
        ("oops", {"error": "The arguments are no JSON object: 'oops'. Send one JSON object for each call."}),
    ],
)
async def test_damaged_arguments_are_read_or_refused_as_a_whole(
    openai_stub: StubFactory, raw: str, outcome: Any
) -> None:
    stub = openai_stub(Reply(tool_calls=(("weather", raw),)), "Done.")
    async with stub.chat_model(streaming=True) as model:
        result = await session_with(model).run("go")

    assert list(result.results.values()) == [outcome]


@pytest.mark.parametrize("ids", [["", "b"], ["a", "a"]], ids=["empty", "twice"])
async def test_a_replaced_id_is_the_only_one_in_the_history(ids: list[str]) -> None:
    # As Anthropic's and OpenAI's (Responses) clients return a reply: its calls are content blocks, too.
    blocks: list[Any] = [{"type": "text", "text": "Look."}]
    blocks += [{"type": "tool_use", "id": id_, "name": "weather", "input": {}} for id_ in ids]
    calls = [{"id": id_, "name": "weather", "args": {}} for id_ in ids]
    session = session_with(ScriptedChatModel([AIMessage(blocks, tool_calls=calls), "Done."]))

    result = await session.run("go")

    reply = (await session.driver.state()).values["messages"][1]
    assert reply.content == [{"type": "text", "text": "Look."}]
    assert [call["id"] for call in reply.tool_calls] == list(result.results)


DAMAGED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": "[1]"}}],
}
NO_CHOICES = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}


@pytest.mark.parametrize(
    "failure",
    [
        Failure(200, body=NO_CHOICES),
        Failure(200, body={**NO_CHOICES, "choices": None}),
        Failure(200, body='{"id": "c", '),
        Failure(200, body={**NO_CHOICES, "choices": [{"index": 0, "message": DAMAGED, "finish_reason": "tool_calls"}]}),
        Failure(400, "Failed to call a function.", code="tool_use_failed"),
    ],
    ids=["no choices", "null choices", "half a body", "a list as arguments", "Groq's failed generation"],
)
@pytest.mark.parametrize("observed", [False, True])
async def test_an_unreadable_reply_is_requested_again(
    openai_stub: StubFactory, failure: Failure, observed: bool
) -> None:
    callbacks: Any = [BaseCallbackHandler()] if observed else None
    async with openai_stub(failure, "Hi.").chat_model() as model:
        agent = create_graph_agent(model, config=LoopConfig(model_retries=1))
        output = await agent.ainvoke({"messages": [("user", "go")]}, {"callbacks": callbacks})

    assert (output["status"], output["messages"][-1].text) == ("COMPLETED", "Hi.")


class Exiting(ScriptedChatModel):
    """Raises `SystemExit` in place of each reply."""

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        raise SystemExit(3)


async def test_an_exit_of_the_models_client_fails_the_input() -> None:
    talk = Session(
        create_graph_agent(Exiting(responses=[], disable_streaming=True), checkpointer=InMemorySaver()), "s1"
    )

    result = await talk.run("go")
    streamed = [part async for part in talk.stream("go")]

    assert (result.status, result.error, streamed[-1].type) == (
        "FAILED",
        "The model call failed; see the provider's documentation.",
        "done",
    )
