"""What middleware returns with a model response beyond the reply, and tools that it adds to requests."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ExtendedModelResponse,
    PIIMiddleware,
    TracePolicy,
    omit_payload,
    wrap_model_call,
)
from langchain.agents.middleware.types import AgentState, ModelResponse
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_core.tracers import BaseTracer, Run
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from tests.support.agents import asks, echo, says

CALLS = [asks(("c1", "shout", {"text": "hey"})), "Done."]
NATIVE = LoopConfig(tool_calling="native")


@tool
def shout(text: str) -> str:
    """Shout."""
    return text.upper()


class Shouting(AgentMiddleware[Any, Any, Any]):
    """Adds a tool to each request, and runs its calls."""

    def __init__(self, added: Any = shout) -> None:
        super().__init__()
        self.added = added

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(tools=[*request.tools, self.added]))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        known = request.tool is not None
        return await handler(request if known else request.override(tool=self.added))


def noting(**update: Any) -> Any:
    """Middleware that returns an update with each model response."""

    class Noting(AgentMiddleware[Any, Any, Any]):
        class State(AgentState):
            seen: Annotated[list[str], operator.add]

        state_schema = State

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return ExtendedModelResponse(await handler(request), Command(update=update))

    return Noting()


def session_of(replies: list[Any], **options: Any) -> Session:
    options = {"config": NATIVE, **options}
    return Session(create_graph_agent(ScriptedChatModel(replies), checkpointer=InMemorySaver(), **options), "s1")


def contents(state: Any) -> list[str]:
    return [message.text or "…" for message in state["messages"]]


@pytest.mark.parametrize("tools", [[echo], []])
@pytest.mark.parametrize("mode", ["native", "text"])
async def test_a_tool_that_middleware_adds_is_run_by_it(tools: list[Any], mode: Any) -> None:
    session = session_of(CALLS, tools=tools, hooks=[Shouting()], config=LoopConfig(tool_calling=mode))
    result = await session.run("go")

    assert (result.answer, list(result.results.values()), result.usage["model_calls"]) == ("Done.", ["HEY"], 2)


async def test_a_tool_that_no_middleware_runs_is_refused() -> None:
    @wrap_model_call
    async def adding(request: Any, handler: Any) -> Any:
        return await handler(request.override(tools=[*request.tools, shout]))

    agent = create_graph_agent(ScriptedChatModel(["x"]), tools=[echo], hooks=[adding], config=NATIVE)
    with pytest.raises(ConfigError, match=r"Middleware added tools.*Unknown tools: shout.*request.override"):
        await agent.ainvoke(says("go"))


async def test_approval_rules_hold_for_tools_that_middleware_adds() -> None:
    config = LoopConfig(tool_calling="native", approve=["*"])
    session = session_of(CALLS, tools=[echo], hooks=[Shouting()], config=config)
    asked = await session.run("go")
    done = await session.resume("approve")

    assert (asked.waiting, done.answer, list(done.results.values())) == ("approval", "Done.", ["HEY"])


async def test_an_added_tool_with_a_mark_for_approval_does_not_run() -> None:
    added = shout.model_copy(update={"metadata": {"approve": True}})
    result = await session_of(CALLS, tools=[echo], hooks=[Shouting(added)]).run("go")

    [failed] = result.results.values()
    assert "shout did not run: middleware runs it, and its mark `approve`" in failed["error"]


@pytest.mark.parametrize("tools", [[echo], []])
async def test_messages_returned_with_an_answer_follow_it_and_are_no_input(tools: list[Any]) -> None:
    hooks = [noting(messages=[HumanMessage("noted")])]
    model = ScriptedChatModel(["One.", "Two."])
    agent = create_graph_agent(model, tools=tools, hooks=hooks, checkpointer=InMemorySaver())
    session = Session(agent, "s1")
    await session.run("a")
    await session.run("b")
    state = (await agent.aget_state({"configurable": {"thread_id": "s1"}})).values

    inputs = [event["content"] for event in await session.events() if event["type"] == "user_message"]
    assert (contents(state), inputs) == (["a", "One.", "noted", "b", "Two.", "noted"], ["a", "b"])


async def test_messages_returned_with_calls_follow_their_results() -> None:
    model = ScriptedChatModel([asks(("c1", "echo", {"text": "x"})), "Done."])
    agent = create_graph_agent(
        model, tools=[echo], hooks=[noting(messages=HumanMessage("noted"), seen=["m"])], config=NATIVE
    )
    state = await agent.ainvoke(says("go"))

    assert (contents(state), state["seen"]) == (["go", "…", "x", "noted", "Done.", "noted"], ["m", "m"])


@pytest.mark.parametrize("tools", [[echo], []])
@pytest.mark.parametrize("by_command", [True, False])
async def test_a_structured_response_of_middleware_is_that_of_the_answer(tools: list[Any], *, by_command: bool) -> None:
    @wrap_model_call
    async def structuring(request: Any, handler: Any) -> Any:
        response = await handler(request)
        if by_command:
            return ExtendedModelResponse(response, Command(update={"structured_response": {"city": "Oslo"}}))
        return ModelResponse(result=response.result, structured_response={"city": "Oslo"})

    result = await session_of(["Oslo."], tools=tools, hooks=[structuring]).run("Where?")

    assert (result.answer, result.structured_response) == ("Oslo.", {"city": "Oslo"})


@pytest.mark.parametrize("command", [Command(goto="tools"), Command(graph=Command.PARENT), Command(resume=1)])
async def test_a_command_that_does_more_than_update_fails_the_input(command: Command[Any]) -> None:
    @wrap_model_call
    async def leaving(request: Any, handler: Any) -> Any:
        return ExtendedModelResponse(await handler(request), command)

    result = await session_of(["x"], hooks=[leaving]).run("go")

    assert (result.status, "is not yet supported with a model response" in result.error) == ("FAILED", True)


@pytest.mark.parametrize("tools", [[echo], []])
async def test_own_fields_of_a_model_response_are_written(tools: list[Any]) -> None:
    agent = create_graph_agent(ScriptedChatModel(["One."]), tools=tools, hooks=[noting(seen=["m"])])

    assert (await agent.ainvoke(says("go")))["seen"] == ["m"]


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_v3_streams_project_tool_calls() -> None:
    model = ScriptedChatModel([asks(("c1", "echo", {"text": "x"})), "Done."])
    run = await create_graph_agent(model, tools=[echo], config=NATIVE).astream_events(says("go"), version="v3")

    assert [(call.tool_name, call.input) async for call in run.tool_calls] == [("echo", {"text": "x"})]


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
@pytest.mark.parametrize("tools", [[echo], []])
async def test_v3_streams_project_messages_as_middleware_leaves_them(tools: list[Any]) -> None:
    hooks = [PIIMiddleware("email", apply_to_output=True)]
    agent = create_graph_agent(ScriptedChatModel(["Write to a@b.com."]), tools=tools, hooks=hooks)
    run = await agent.astream_events(says("go"), version="v3")

    assert [await message.text async for message in run.messages] == ["Write to [REDACTED_EMAIL]."]


async def test_a_blocking_run_prefers_blocking_wraps() -> None:
    class Mixed(AgentMiddleware[Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__()
            self.ran: list[str] = []

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            self.ran.append("blocking")
            return handler(request)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            self.ran.append("asynchronous")
            return await handler(request)

    mixed = Mixed()
    agent = create_graph_agent(ScriptedChatModel(["One.", "Two."]), hooks=[mixed])
    await agent.ainvoke(says("go"))
    await asyncio.to_thread(agent.invoke, says("go"))

    assert mixed.ran == ["asynchronous", "blocking"]


async def test_tracers_record_of_a_hook_what_its_policy_leaves() -> None:
    class Private(AgentMiddleware[Any, Any, Any]):
        trace_policy = TracePolicy(process_inputs=omit_payload)

        async def abefore_model(self, state: Any, runtime: Any) -> None:
            """Change nothing."""

    class Recorder(BaseTracer):
        def __init__(self) -> None:
            super().__init__()
            self.inputs: dict[str, Any] = {}

        def _persist_run(self, run: Run) -> None:
            """Keep nothing."""

        def _on_chain_start(self, run: Run) -> None:
            self.inputs[run.name] = run.inputs

    recorder = Recorder()
    await create_graph_agent(ScriptedChatModel(["One."]), hooks=[Private()]).ainvoke(
        says("go"), {"callbacks": [recorder]}
    )

    assert recorder.inputs["Private.before_model"] == {}


async def test_a_stream_has_every_event_of_an_answer_to_which_middleware_adds_a_message() -> None:
    session = session_of(["Done."], tools=[echo], hooks=[noting(messages=[HumanMessage("noted")])])
    parts = [part async for part in session.stream("go")]

    streamed = [part.event for part in parts if part.type == "event"]
    assert streamed == await session.events()
