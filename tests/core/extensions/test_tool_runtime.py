"""Tools that take a `ToolRuntime`: injected arguments are never serialized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langchain_core.tracers import BaseTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import InjectedState, ToolRuntime
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_serializer

from graph_agent import AgentContext, ScriptedChatModel, create_graph_agent
from tests.support.agents import asks, says


class Mine(AgentContext):
    """A context that must not be serialized."""

    tenant: str = "acme"

    @model_serializer
    def _never(self) -> Any:
        raise AssertionError("the context was serialized")


class Args(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str
    times: int = Field(default=2)
    runtime: ToolRuntime


def tenant(runtime: Any) -> str:
    return str(runtime.context.tenant)


@tool
async def coroutine(text: str, runtime: ToolRuntime, times: int = 2) -> str:
    """Give the text and the tenant."""
    return text * times + tenant(runtime)


@tool
def blocking(text: str, runtime: ToolRuntime, times: int = 2) -> str:
    """Give the text and the tenant."""
    return text * times + tenant(runtime)


@tool
def typed(text: str, runtime: ToolRuntime[Mine, dict[str, Any]], times: int = 2) -> str:
    """Give the text and the tenant."""
    return text * times + tenant(runtime)


@tool
def of_none(text: str, runtime: ToolRuntime[None, Any], times: int = 2) -> str:
    """Give the text and the tenant."""
    return text * times + tenant(runtime)


@tool(args_schema=Args)
def with_schema(text: str, runtime: ToolRuntime, times: int = 2) -> str:
    """Give the text and the tenant."""
    return text * times + tenant(runtime)


@tool(response_format="content_and_artifact")
async def with_artifact(
    text: str, runtime: ToolRuntime, state: Annotated[dict[str, Any], InjectedState], times: int = 2
) -> tuple[str, int]:
    """Give the text and the tenant."""
    return text * times + tenant(runtime), len(state["messages"])


class OfAClass(BaseTool):
    name: str = "of_a_class"
    description: str = "Give the text and the tenant."
    args_schema: Any = Args
    calls: list[str] = Field(default_factory=list)
    _times_called: int = PrivateAttr(default=0)

    def _run(self, text: str, runtime: ToolRuntime, times: int = 2) -> str:
        self.calls.append(text)
        self._times_called += 1
        return text * times + tenant(runtime)

    async def _arun(self, text: str, runtime: ToolRuntime, times: int = 2) -> str:
        return self._run(text, runtime, times)


TOOLS = [coroutine, blocking, typed, of_none, with_schema, with_artifact, OfAClass()]


class IgnoringHandler(AsyncCallbackHandler):
    async def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        pass


class Traces(BaseTracer):
    def _persist_run(self, run: Any) -> None:
        run.model_dump()


Run = Callable[[CompiledStateGraph[Any, Any, Any, Any], RunnableConfig], Any]


async def whole(graph: CompiledStateGraph[Any, Any, Any, Any], config: RunnableConfig) -> None:
    await graph.ainvoke(says("go"), config, context=Mine())


async def streamed(graph: CompiledStateGraph[Any, Any, Any, Any], config: RunnableConfig) -> None:
    async for _ in graph.astream(
        says("go"), config, context=Mine(), stream_mode=["messages", "updates", "custom", "values", "debug"]
    ):
        pass


async def events(graph: CompiledStateGraph[Any, Any, Any, Any], config: RunnableConfig) -> None:
    async for _ in graph.astream_events(says("go"), config, context=Mine(), version="v2"):
        pass


@pytest.mark.parametrize("handlers", [[], [IgnoringHandler()], [Traces()]], ids=["no callbacks", "callbacks", "tracer"])
@pytest.mark.parametrize("run", [whole, streamed, events])
@pytest.mark.parametrize("given", TOOLS, ids=lambda given: given.name)
async def test_nothing_injected_is_serialized(given: BaseTool, run: Run, handlers: list[BaseCallbackHandler]) -> None:
    """A warning is an error in these tests, and an error in a tool is an error result."""
    model = ScriptedChatModel([asks(("c1", given.name, {"text": "a"})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[given], context_schema=Mine, checkpointer=InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": "s1"}, "callbacks": handlers}

    await run(graph, config)

    messages = (await graph.aget_state(config)).values["messages"]
    assert [(m.text, m.status) for m in messages if m.type == "tool"] == [("aaacme", "success")]


def test_blocking_entry_points_serialize_nothing_either() -> None:
    model = ScriptedChatModel([asks(("c1", "blocking", {"text": "a"})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[blocking], context_schema=Mine)

    messages = graph.invoke(says("go"), context=Mine())["messages"]

    assert [m.text for m in messages if m.type == "tool"] == ["aaacme"]


@pytest.mark.parametrize("given", TOOLS, ids=lambda given: given.name)
async def test_arguments_are_checked_as_before(given: BaseTool) -> None:
    model = ScriptedChatModel([asks(("c1", given.name, {"text": "a", "times": "x"})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[given], context_schema=Mine)

    messages = (await graph.ainvoke(says("go"), context=Mine()))["messages"]

    [result] = [m for m in messages if m.type == "tool"]
    assert (result.status, result.text) == (
        "error",
        f"The arguments do not fit the tool {given.name!r}: times: Input should be a valid integer, unable to parse "
        "string as an integer. It takes: text, times.",
    )


async def test_a_tool_object_keeps_what_it_counts() -> None:
    counts = OfAClass(calls=[])
    model = ScriptedChatModel([asks(("c1", "of_a_class", {"text": "a"})), "No more actions.", "Done."])

    await create_graph_agent(model, tools=[counts], context_schema=Mine).ainvoke(says("go"), context=Mine())

    assert (counts.calls, counts._times_called) == (["a"], 1)


async def test_extra_and_left_out_arguments_reach_the_function() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True, extra="allow")

        text: str
        hidden: str = Field(default="never", exclude=True)
        runtime: ToolRuntime

    @tool(args_schema=Open)
    def collect(**given: Any) -> str:
        """Give what is given."""
        return ", ".join(sorted(given))

    model = ScriptedChatModel([asks(("c1", "collect", {"text": "a", "more": 1})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[collect], context_schema=Mine)

    messages = (await graph.ainvoke(says("go"), context=Mine()))["messages"]

    assert [m.text for m in messages if m.type == "tool"] == ["more, runtime, text"]
