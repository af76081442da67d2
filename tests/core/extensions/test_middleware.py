"""LangChain's `AgentMiddleware` around model requests and tool calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ContextEditingMiddleware,
    ExtendedModelResponse,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    ToolRetryMiddleware,
    wrap_model_call,
    wrap_tool_call,
)
from langchain.agents.middleware.context_editing import ClearToolUsesEdit
from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.session.results import Token
from tests.support.agents import add, asks, at_step_limit, dialogue, echo, says
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

DOWN = Failure(503, "Try later.", type="server_error", headers={"retry-after": "0"})
CALL = Reply(tool_calls=(("echo", {"text": "a"}),))
NO_RETRY = LoopConfig(model_retries=0)
PLAN = '{"status": "done", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "a"}}]}'


def contents(body: dict[str, Any], role: str) -> list[Any]:
    return [message["content"] for message in body["messages"] if message["role"] == role]


@pytest.mark.parametrize("mode", ["native", "text", "wave"])
async def test_a_fallback_model_is_asked_in_every_mode(openai_stub: StubFactory, mode: Any) -> None:
    plans: dict[str, list[str | Reply]] = {
        "native": [CALL, "No more actions."],
        "text": [asks(("c1", "echo", {"text": "a"})), "No more actions."],
        "wave": [PLAN],
    }
    first = openai_stub(*[DOWN] * 3)
    second = openai_stub(*plans[mode], "Done.")
    async with first.chat_model() as model, second.chat_model() as spare:
        graph = create_graph_agent(
            model,
            tools=[echo],
            hooks=[ModelFallbackMiddleware(spare)],
            config=LoopConfig(model_retries=0, tool_calling=mode),
        )

        state = await graph.ainvoke(says("go"))

    assert (state["messages"][-1].text, ["tools" in body for body in second.bodies]) == (
        "Done.",
        {"native": [True] * 3, "text": [False] * 3, "wave": [False] * 2}[mode],
    )


async def test_a_fallback_model_keeps_to_the_callers_choice_of_tools(openai_stub: StubFactory) -> None:
    schema = {"type": "function", "function": {"name": "theirs", "parameters": {"type": "object", "properties": {}}}}
    first, second = openai_stub(DOWN), openai_stub(Reply(tool_calls=(("theirs", {}),)))
    async with first.chat_model() as model, second.chat_model() as spare:
        graph = create_graph_agent(
            model,
            tools=[echo],
            hooks=[ModelFallbackMiddleware(spare)],
            config=NO_RETRY,
            checkpointer=InMemorySaver(),
        )
        context: Any = {"client_tools": [schema], "client_tool_choice": "any"}

        result = await Session(graph, "s1").run("go", context=context)

    assert (
        [body.get("tool_choice") for body in second.bodies],
        [each.value["name"] for each in result.interrupts],
    ) == (
        ["required"],
        ["theirs"],
    )


async def test_middleware_retries_a_model(openai_stub: StubFactory) -> None:
    retry: ModelRetryMiddleware[Any, Any] = ModelRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    stub = openai_stub(DOWN, CALL, DOWN, "No more actions.", DOWN, "Done.")
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[retry], config=NO_RETRY, checkpointer=InMemorySaver())

        result = await Session(graph, "s1").run("go")

    assert (result.answer, result.usage["model_calls"], len(stub.bodies)) == ("Done.", 3, 6)


async def test_a_broken_stream_is_not_restarted(openai_stub: StubFactory) -> None:
    retry: ModelRetryMiddleware[Any, Any] = ModelRetryMiddleware(
        max_retries=1, initial_delay=0.0, jitter=False, on_failure="error"
    )
    stub = openai_stub("No more actions.", Reply("One two three", error_after=3), "Never asked.")
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[retry], config=NO_RETRY, checkpointer=InMemorySaver())

        parts = [part async for part in Session(graph, "s1").stream("go")]

    report = "\n\nThis request failed. The model provider did not answer as it should; try again later."
    tokens = [(part.text, part.reports_failure) for part in parts if isinstance(part, Token)]
    assert (tokens, len(stub.bodies)) == ([("One", False), (" two", False), (report, True)], 2)


async def test_an_answer_is_streamed_through_middleware(openai_stub: StubFactory) -> None:
    stub = openai_stub(CALL, "No more actions.", "One two.")
    async with stub.chat_model() as model:
        graph = create_graph_agent(
            model,
            tools=[echo],
            hooks=[ModelRetryMiddleware(), ContextEditingMiddleware()],
            checkpointer=InMemorySaver(),
        )

        parts = [part async for part in Session(graph, "s1").stream("go")]

    assert [part.text for part in parts if isinstance(part, Token)] == ["One", " two."]


async def test_an_answer_at_a_limit_comes_through_middleware(openai_stub: StubFactory) -> None:
    first, second = openai_stub(CALL, DOWN), openai_stub("As far as I got.")
    async with first.chat_model() as model, second.chat_model() as spare:
        graph = create_graph_agent(
            model,
            tools=[echo],
            hooks=[ModelFallbackMiddleware(spare)],
            config=LoopConfig(max_steps=1, model_retries=0),
            checkpointer=InMemorySaver(),
        )

        parts = [part async for part in Session(graph, "s1").stream("go")]

    result = parts[-1].result  # type: ignore[union-attr]  # the last part is Done
    answer = at_step_limit(1, "As far as I got.")
    tokens = [part.text for part in parts if isinstance(part, Token)]
    assert (tokens[0], "".join(tokens), result.answer, result.status) == (
        "Reached maximum reasoning steps (1)",
        answer,
        answer,
        "ROUND_LIMIT",
    )


async def test_personal_data_is_not_sent_to_the_model(openai_stub: StubFactory) -> None:
    @tool
    def look_up() -> str:
        """Look an address up."""
        return "It is b@example.com."

    pii: Any = PIIMiddleware("email", apply_to_tool_results=True, apply_to_output=True)
    call = Reply(tool_calls=(("look_up", {}),))
    stub = openai_stub(call, "No more actions.", "Write to c@example.com now.", "No more actions.", "Done.")
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[look_up], hooks=[pii], checkpointer=InMemorySaver())
        session = Session(graph, "s1")

        parts = [part async for part in session.stream("I am a@example.com.")]
        await session.run("And now?")

    sent = [(contents(body, "user")[0], *contents(body, "tool")) for body in stub.bodies]
    asked, looked_up = "I am [REDACTED_EMAIL].", "It is [REDACTED_EMAIL]."
    assert (sent, [part.text for part in parts if isinstance(part, Token)]) == (
        [(asked,), *[(asked, looked_up)] * 4],
        ["Write to [REDACTED_EMAIL] now."],
    )


async def test_personal_data_is_not_streamed_in_direct_mode(openai_stub: StubFactory) -> None:
    pii: Any = PIIMiddleware("email", apply_to_output=True)
    stub = openai_stub("Write to c@example.com now.")
    async with stub.chat_model() as model:
        config = LoopConfig(finalize="direct")
        graph = create_graph_agent(model, tools=[echo], hooks=[pii], config=config, checkpointer=InMemorySaver())

        parts = [part async for part in Session(graph, "s1").stream("go")]

    assert [part.text for part in parts if isinstance(part, Token)] == ["Write to [REDACTED_EMAIL] now."]


async def test_blocked_personal_data_fails_before_the_request(openai_stub: StubFactory) -> None:
    stub = openai_stub()
    async with stub.chat_model() as model:
        block: Any = PIIMiddleware("email", strategy="block")
        graph = create_graph_agent(model, tools=[echo], hooks=[block], checkpointer=InMemorySaver())

        result = await Session(graph, "s1").run("I am a@example.com.")

    assert (result.status, stub.bodies) == ("FAILED", [])


async def test_middleware_retries_a_tool() -> None:
    calls: list[str] = []

    @tool
    def flaky(text: str) -> str:
        """Fail once."""
        calls.append(text)
        if len(calls) == 1:
            raise ConnectionError("lost")
        return f"{text}!"

    retry: Any = ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    script = [asks(("c1", "flaky", {"text": "a"})), "No more actions.", "Done."]
    graph = create_graph_agent(ScriptedChatModel(script), tools=[flaky], hooks=[retry])

    state = await graph.ainvoke(says("go"))

    assert (state["messages"][2].text, state["messages"][2].status, calls) == ("a!", "success", ["a", "a"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_failure": "error"}, "flaky failed: ConnectionError: lost"),
        ({}, "Tool 'flaky' failed after 2 attempts with ConnectionError: lost. Please try again."),
    ],
    ids=["raised", "reported by the middleware"],
)
async def test_a_tool_that_keeps_failing_is_an_error_result(options: dict[str, Any], error: str) -> None:
    @tool
    def flaky() -> str:
        """Fail."""
        raise ConnectionError("lost")

    retry: Any = ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False, **options)
    script = [asks(("c1", "flaky", {})), "No more actions.", "Done."]
    graph = create_graph_agent(ScriptedChatModel(script), tools=[flaky], hooks=[retry])

    message = (await graph.ainvoke(says("go")))["messages"][2]

    assert (message.text, message.status) == (error, "error")


async def test_an_exit_around_a_model_request_fails_the_input() -> None:
    class Exiting(AgentMiddleware[Any, Any, Any]):
        async def awrap_model_call(self, request: ModelRequest[Any], handler: Any) -> Any:
            raise SystemExit(2)

    hooks: Any = [Exiting()]
    graph = create_graph_agent(ScriptedChatModel(["Never."]), hooks=hooks, checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go")

    assert (result.status, result.error) == ("FAILED", "The hook Exiting.wrap_model_call failed: SystemExit: 2")


async def test_old_results_are_cleared_from_a_request(openai_stub: StubFactory) -> None:
    edit = ClearToolUsesEdit(trigger=1, keep=1, placeholder="[gone]")
    more = Reply(tool_calls=(("echo", {"text": "b"}),))
    stub = openai_stub(CALL, more, "No more actions.", "Done.")
    async with stub.chat_model() as model:
        editing: Any = ContextEditingMiddleware(edits=[edit])
        graph = create_graph_agent(model, tools=[echo], hooks=[editing])

        state = await graph.ainvoke(says("go"))

    assert (
        [contents(body, "tool") for body in stub.bodies],
        [m.text for m in state["messages"] if m.type == "tool"],
    ) == (
        [[], ["a"], ["[gone]", "b"], ["[gone]", "b"]],
        ["a", "b"],
    )


Log = list[str]


def noting(log: Log, name: str) -> AgentMiddleware[Any, Any, Any]:
    class Notes(AgentMiddleware[Any, Any, Any]):
        async def awrap_model_call(
            self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
        ) -> Any:
            log.append(f"{name} asks")
            response = await handler(request)
            assert isinstance(response, ModelResponse)
            log.append(f"{name} asked")
            return response.result[0] if name == "inner" else response

        async def awrap_tool_call(
            self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
        ) -> ToolMessage | Command[Any]:
            log.append(f"{name} calls {request.tool_call['name']}")
            answer: ToolMessage = await handler(request)
            log.append(f"{name} called")
            return answer

    return Notes()


async def test_the_first_one_is_outermost() -> None:
    log: Log = []
    script = [asks(("c1", "echo", {"text": "a"})), "No more actions.", "Done."]
    graph = create_graph_agent(
        ScriptedChatModel(script), tools=[echo], hooks=[noting(log, "outer"), noting(log, "inner")]
    )

    await graph.ainvoke(says("go"))

    asked = ["outer asks", "inner asks", "inner asked", "outer asked"]
    called = ["outer calls echo", "inner calls echo", "inner called", "outer called"]
    assert log == [*asked, *called, *asked, *asked]


async def test_a_blocking_wrap_runs_in_a_thread(openai_stub: StubFactory) -> None:
    @wrap_model_call
    def louder(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]) -> Any:
        return handler(request.override(messages=[*request.messages, HumanMessage("Louder!")]))

    @wrap_tool_call
    def shouting(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        arguments = {"text": request.tool_call["args"]["text"].upper()}
        return handler(request.override(tool_call={**request.tool_call, "args": arguments}))

    stub = openai_stub(CALL, "No more actions.", "One two.")
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[louder, shouting], checkpointer=InMemorySaver())

        parts = [part async for part in Session(graph, "s1").stream("go")]

    assert (
        [contents(body, "user")[-1].splitlines()[-1] for body in stub.bodies],
        contents(stub.bodies[1], "tool"),
        [part.text for part in parts if isinstance(part, Token)],
    ) == (["Louder!"] * 3, ["A"], ["One two."])


async def test_tools_and_options_of_a_request_may_be_changed(openai_stub: StubFactory) -> None:
    shown: list[Any] = []

    @wrap_model_call
    async def narrower(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        shown.append((list(request.tools), request.system_prompt is not None, request.runtime is not None))
        kept: list[Any] = [tool for tool in request.tools if not isinstance(tool, dict) and tool.name == "add"]
        return await handler(request.override(tools=kept, model_settings={"stop": ["X"]}))

    stub = openai_stub("No more actions.", "Done.")
    async with stub.chat_model() as model:
        config = LoopConfig(tool_calling="native", finalize="compose")
        await create_graph_agent(model, tools=[echo, add], hooks=[narrower], config=config).ainvoke(says("go"))

    offered = [([tool["function"]["name"] for tool in body["tools"]], body["stop"]) for body in stub.bodies]
    assert (offered, shown) == ([(["add"], ["X"])] * 2, [([echo, add], True, True)] * 2)


async def test_model_calls_of_middleware_are_not_streamed(openai_stub: StubFactory) -> None:
    stub, judge_stub = openai_stub("One two."), openai_stub("Fine by me.")
    async with stub.chat_model() as model, judge_stub.chat_model(streaming=True) as judge:

        @wrap_model_call
        async def judging(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
            await judge.ainvoke("Is that so?")
            return await handler(request)

        graph = create_graph_agent(model, hooks=[judging], checkpointer=InMemorySaver())

        parts = [part async for part in Session(graph, "s1").stream("go")]

    assert [part.text for part in parts if isinstance(part, Token)] == ["One two."]


async def test_an_abort_cancels_middleware() -> None:
    begun = asyncio.Event()

    @wrap_model_call
    async def waiting(request: ModelRequest[Any], handler: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    graph = create_graph_agent(
        ScriptedChatModel(["never"]), tools=[echo], hooks=[waiting], checkpointer=InMemorySaver()
    )
    session = Session(graph, "s1")
    running = asyncio.create_task(session.run("go"))
    await begun.wait()

    await session.abort()

    assert (await running).status == "ABORTED"


async def test_a_reply_without_any_model(openai_stub: StubFactory) -> None:
    @wrap_model_call
    async def by_heart(request: ModelRequest[Any], handler: Any) -> Any:
        return AIMessage("I know that by heart.")

    stub = openai_stub()
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[by_heart])
        state = await graph.ainvoke(says("go"))

    assert (dialogue(state["messages"]), stub.bodies) == (
        [("human", "go"), ("ai", "I know that by heart.")],
        [],
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            ExtendedModelResponse(ModelResponse(result=[AIMessage("x")]), Command(update={"events": []})),
            "what it may not: 'events' is no own state field of the agent.",
        ),
        (
            ExtendedModelResponse(ModelResponse(result=[AIMessage("x")]), Command(goto="finalize")),
            "Command goto is not yet supported with a model response",
        ),
        (ModelResponse(result=[]), "answered a model request with []; give one AIMessage."),
        ("text", "answered a model request with 'text'; give a ModelResponse or AIMessage."),
    ],
    ids=["reserved", "goto", "nothing", "text"],
)
async def test_an_answer_that_cannot_be_used_fails_the_input(answer: Any, message: str) -> None:
    @wrap_model_call
    async def odd(request: ModelRequest[Any], handler: Any) -> Any:
        return answer

    session = Session(
        create_graph_agent(ScriptedChatModel([]), tools=[echo], hooks=[odd], checkpointer=InMemorySaver()), "s1"
    )
    result = await session.run("go")

    assert (result.status, message in result.error) == ("FAILED", True)
