"""Fallback models over real HTTP: which model is tried next, and the warnings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, at_step_limit, echo, kinds, says, thread
from tests.support.openai_stub import Failure, OpenAIStub, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

DONE = "No more actions."
DOWN = Failure(503, "Try later.", type="server_error", headers={"retry-after": "0"})
NO_KEY = Failure(401, "Incorrect API key provided.", code="invalid_api_key")
CALL = Reply(tool_calls=(("echo", {"text": "a"}),))
PLAN = '{"status": "done", "action": "echo", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "a"}}]}'


class Models:
    """Chat models for stubs, closed at the end."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def of(self, stub: OpenAIStub, name: str, **kwargs: Any) -> ChatOpenAI:
        return await self._stack.enter_async_context(stub.chat_model(name, **kwargs))


@pytest.fixture
async def models() -> AsyncIterator[Models]:
    async with AsyncExitStack() as stack:
        yield Models(stack)


def warnings_of(events: list[Any]) -> list[str]:
    return [event["message"] for event in events if event["type"] == "warning"]


def errors_of(events: list[Any]) -> list[tuple[str, str]]:
    return [(event["kind"], event["message"]) for event in events if event["type"] == "error"]


async def test_the_next_model_answers_for_the_rest_of_the_input(openai_stub: StubFactory, models: Models) -> None:
    first, second = openai_stub(DOWN, DOWN, "No more actions.", "Hi again."), openai_stub(CALL, DONE, "Done.")
    spare = await models.of(second, "spare")
    config = LoopConfig(model_retries=1, fallback_models=(spare,), tool_calling="native", finalize="compose")
    graph = create_graph_agent(
        await models.of(first, "main"), tools=[echo], config=config, checkpointer=InMemorySaver()
    )
    session = Session(graph, "s1")

    done = await session.run("go")
    asked = (len(first.requests), len(second.requests))
    again = await session.run("and now?", context={"max_steps": 2})

    assert {
        "answers": (done.answer, again.answer),
        "asked": [asked, (len(first.requests), len(second.requests))],
        "usage": (done.usage["model_calls"], again.usage["model_calls"]),
        "warnings": warnings_of(await session.events()),
        "events": kinds(await session.events())[:5],
    } == {
        "answers": ("Done.", "Hi again."),
        "asked": [(2, 3), (4, 3)],
        "usage": (3, 2),
        "warnings": ["The model main does not answer (HTTP 503); going on with spare."],
        "events": ["user_message", "status", "warning", "plan", "tool_call"],
    }


@pytest.mark.parametrize(
    ("options", "replies"),
    [
        ({"tool_calling": "text"}, ['{"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}', DONE, "Done."]),
        ({"tool_calling": "wave"}, [PLAN, "Done."]),
        ({"finalize": "direct"}, [CALL, "Done."]),
        ({"max_steps": 1}, [CALL, "Done."]),
    ],
    ids=["text", "wave", "direct", "limit"],
)
async def test_every_mode_falls_back(
    openai_stub: StubFactory, models: Models, options: dict[str, Any], replies: list[Any]
) -> None:
    spare = await models.of(openai_stub(*replies), "spare")
    config = LoopConfig(model_retries=0, fallback_models=(spare,), **options)

    result = await create_graph_agent(await models.of(openai_stub(DOWN), "main"), tools=[echo], config=config).ainvoke(
        says("go")
    )

    texts = [message.text for message in result["messages"] if message.type in ("tool", "ai") and message.text]
    assert (texts[0], "Done." in texts[-1].splitlines()) == ("a", True)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("steps", [3, 1], ids=["completed", "limit"])
async def test_the_answer_falls_back(openai_stub: StubFactory, models: Models, streamed: bool, steps: int) -> None:
    plans: list[Any] = [CALL, "No more actions."][: 1 if steps == 1 else 2]
    first, second = openai_stub(*plans, DOWN, DOWN), openai_stub("Done at last.")
    config = LoopConfig(model_retries=1, max_steps=steps, fallback_models=(await models.of(second, "spare"),))
    graph = create_graph_agent(
        await models.of(first, "main"), tools=[echo], config=config, checkpointer=InMemorySaver()
    )
    session = Session(graph, "s1")

    if streamed:
        parts = [part async for part in session.stream("go")]
        read = "".join(part.text for part in parts if part.type == "token")
    else:
        read = (await session.run("go")).answer or ""

    answer = at_step_limit(1, "Done at last.") if steps == 1 else "Done at last."
    assert (read, len(first.requests), len(second.requests), warnings_of(await session.events())) == (
        answer,
        len(plans) + 2,
        1,
        ["The model main does not answer (HTTP 503); going on with spare."],
    )


async def test_no_fallback_after_the_first_token(openai_stub: StubFactory, models: Models) -> None:
    first, second = openai_stub("No more actions.", Reply("It began well and", cut_after=3)), openai_stub("Done.")
    config = LoopConfig(model_retries=1, fallback_models=(await models.of(second, "spare"),))
    graph = create_graph_agent(
        await models.of(first, "main"), tools=[echo], config=config, checkpointer=InMemorySaver()
    )

    async for _ in graph.astream(says("go"), thread(), stream_mode="messages"):
        pass

    state = (await graph.aget_state(thread())).values
    assert (state["status"], len(first.requests), second.requests) == ("FAILED", 2, [])


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (NO_KEY, "auth"),
        (Failure(403, "Not for you."), "permission"),
        (Failure(404, "The model `main` does not exist.", code="model_not_found"), "unknown_model"),
    ],
    ids=["key", "permission", "model"],
)
async def test_configuration_errors_fail_without_fallback(
    openai_stub: StubFactory, models: Models, failure: Failure, kind: str
) -> None:
    first, second = openai_stub(failure), openai_stub("Done.")
    config = LoopConfig(fallback_models=(await models.of(second, "spare"),))
    graph = create_graph_agent(
        await models.of(first, "main"), tools=[echo], config=config, checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("go")

    errors = errors_of(await Session(graph, "s1").events())
    assert (result.status, [error_kind for error_kind, _ in errors], len(first.requests), second.requests) == (
        "FAILED",
        [kind],
        1,
        [],
    )


async def test_the_last_error_is_reported_when_all_models_fail(openai_stub: StubFactory, models: Models) -> None:
    spares = [await models.of(openai_stub(NO_KEY), "spare"), await models.of(openai_stub(DOWN), "last")]
    config = LoopConfig(model_retries=0, fallback_models=tuple(spares))
    graph = create_graph_agent(
        await models.of(openai_stub(DOWN), "main"), tools=[echo], config=config, checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("go")

    events = await Session(graph, "s1").events()
    assert (result.status, result.usage["model_calls"], warnings_of(events), errors_of(events)) == (
        "FAILED",
        0,
        [
            "The model main does not answer (HTTP 503); going on with spare.",
            "The model spare does not answer (HTTP 401); going on with last.",
        ],
        [
            (
                "transient",
                "The model provider did not answer as it should (HTTP 503); try again later.",
            )
        ],
    )


async def test_a_fallback_model_uses_its_own_tool_calling(openai_stub: StubFactory, models: Models) -> None:
    second = openai_stub('{"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}', DONE, "Done.")
    spare = await models.of(second, "spare", profile={"tool_calling": False})
    config = LoopConfig(model_retries=0, fallback_models=(spare,))

    result = await create_graph_agent(await models.of(openai_stub(DOWN), "main"), tools=[echo], config=config).ainvoke(
        says("go")
    )

    assert (result["messages"][-1].text, ["tools" in body for body in second.bodies]) == ("Done.", [False] * 3)


async def test_a_tool_refusal_is_remembered_per_model(openai_stub: StubFactory, models: Models) -> None:
    no_tools = Failure(400, "spare does not support tools")
    first, second = openai_stub(CALL, DOWN, DONE, "Main again."), openai_stub(no_tools, DONE, "Done.")
    config = LoopConfig(model_retries=0, fallback_models=(await models.of(second, "spare"),))
    graph = create_graph_agent(
        await models.of(first, "main"), tools=[echo], config=config, checkpointer=InMemorySaver()
    )

    answers = [(await Session(graph, "s1").run(text)).answer for text in ("go", "and now?")]

    assert (answers, *[["tools" in body for body in stub.bodies] for stub in (first, second)]) == (
        ["Done.", "Main again."],
        [True, True, True, True],
        [True, False, False],
    )


async def test_usage_before_a_model_timeout_is_counted(openai_stub: StubFactory, models: Models) -> None:
    first, second = openai_stub('{"status": "continue", "tools": []}', DOWN), openai_stub(PLAN, "Done.")
    config = LoopConfig(
        model_retries=0, tool_calling="wave", fallback_models=(await models.of(second, "spare"),), temperature=0
    )
    graph = create_graph_agent(
        await models.of(first, "main"), tools=[echo], config=config, checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("go")

    assert (result.answer, result.usage) == (
        "Done.",
        {"input_tokens": 33, "output_tokens": 21, "total_tokens": 54, "model_calls": 3},
    )


class Silent(ScriptedChatModel):
    """A model whose provider does not answer."""

    async def _agenerate(self, *_: Any, **__: Any) -> Any:
        raise ConnectionError("nobody there")


class Shape(BaseModel):
    """The schema of an answer."""

    word: str


async def test_a_structured_answer_falls_back() -> None:
    spare = ScriptedChatModel([asks(("c1", "echo", {"text": "a"})), "No more actions.", "no shape", '{"word": "yes"}'])
    config = LoopConfig(model_retries=0, fallback_models=(spare,))

    result = await create_graph_agent(
        Silent(responses=["never"]), tools=[echo], config=config, response_format=Shape
    ).ainvoke(says("go"))

    assert result["structured_response"] == {"word": "yes"}


async def test_a_fallback_in_a_runs_context() -> None:
    spares: Iterator[BaseChatModel] = iter([ScriptedChatModel(["One."]), ScriptedChatModel(["Two."])])
    graph = create_graph_agent(Silent(responses=["never"]), config=LoopConfig(model_retries=0))

    answers = [
        (await graph.ainvoke(says("go"), context={"fallback_models": (spare,)}))["messages"][-1].text
        for spare in spares
    ]

    assert answers == ["One.", "Two."]
