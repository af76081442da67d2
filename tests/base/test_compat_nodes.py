"""Execution of nodes and edges over private names of LangGraph: with and without callback handlers."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph._internal._runnable import RunnableSeq
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.base._compat import dual_runnable, route_by_update, skip_unused_callbacks
from graph_agent.base._internal.sync_bridge import blocking
from tests.support.agents import asks, echo, says, thread


class Starts(BaseCallbackHandler):
    """Records the name and the node of each chain run."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, str]] = []

    def on_chain_start(self, *_: Any, name: str = "", metadata: dict[str, Any] | None = None, **__: Any) -> None:
        self.runs.append((name, (metadata or {}).get("langgraph_node", "")))


@pytest.fixture
def chain_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that were run with LangChain's callbacks."""
    started: list[str] = []
    original = RunnableSeq._astart

    async def recording(self: Any, input: Any, config: Any) -> Any:
        started.append(config["metadata"]["langgraph_node"])
        return await original(self, input, config)

    monkeypatch.setattr(RunnableSeq, "_astart", recording)
    return started


def agent(*tools: Any) -> Any:
    return create_graph_agent(
        ScriptedChatModel([asks(("1", tools[0].name, {"text": "a"})), "It is a."], cycle=True), tools=tools
    )


async def test_nodes_of_a_run_without_observers_have_no_callbacks(chain_runs: list[str]) -> None:
    result = await agent(echo).ainvoke(says("go"))

    assert (result["messages"][-1].text, chain_runs) == ("It is a.", [])


async def test_a_handler_of_the_run_receives_each_node(chain_runs: list[str]) -> None:
    handler = Starts()
    await agent(echo).ainvoke(says("go"), {"callbacks": [handler]})

    nodes = ["plan", "tools", "plan", "finalize"]
    assert [node for name, node in handler.runs if name == node] == nodes
    assert [node for node in chain_runs if node != "__start__"] == nodes


async def test_a_program_that_instruments_langgraph_receives_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[str] = []
    original = RunnableSeq.ainvoke

    async def tracing(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        traced.append(config["metadata"]["langgraph_node"])
        return await original(self, input, config, **kwargs)

    monkeypatch.setattr(RunnableSeq, "ainvoke", tracing)
    await agent(echo).ainvoke(says("go"))

    assert [node for node in traced if node != "__start__"] == ["plan", "tools", "plan", "finalize"]


async def test_astream_events_reports_each_node() -> None:
    events = [event async for event in agent(echo).astream_events(says("go"), version="v2")]

    names = [event["name"] for event in events if event["event"] == "on_chain_start"]
    assert [name for name in names if name in ("plan", "tools", "finalize")] == ["plan", "tools", "plan", "finalize"]


@pytest.mark.parametrize("observed", [False, True])
async def test_a_handler_within_a_tool_receives_the_tools_runs_with_their_node(observed: bool) -> None:
    handler = Starts()

    @tool
    async def look(text: str) -> str:
        """Look."""
        return str(await RunnableLambda(str.upper).ainvoke(text, {"callbacks": [handler]}))

    given: RunnableConfig = {"callbacks": [Starts()]} if observed else {}
    await agent(look).ainvoke(says("go"), given)

    assert handler.runs == [("upper", "tools")]


VALUE: ContextVar[str] = ContextVar("test_value", default="unset")


@pytest.mark.parametrize("observed", [False, True])
async def test_context_variables_of_a_tool_stay_its_own(observed: bool) -> None:
    seen: list[str] = []

    @tool
    async def look(text: str) -> str:
        """Look."""
        seen.append(VALUE.get())
        VALUE.set("set")
        return text

    graph = agent(look)
    given: RunnableConfig = {"callbacks": [Starts()]} if observed else {}
    for _ in range(2):
        await graph.ainvoke(says("go"), given)

    assert (seen, VALUE.get()) == (["unset"] * 2, "unset")


class State(TypedDict, total=False):
    word: str
    routed: list[str]


def routed_graph(by_update: Any) -> Any:
    async def first(state: State) -> Command[Any]:
        return Command(update=[("word", "written")])

    async def last(state: State) -> State:
        return {"routed": [state.get("word", "")]}

    async def other(sent: str) -> State:
        return {"routed": [sent]}

    async def by_state(state: State) -> str:
        return "last" if state.get("word") == "written" else "other"

    graph = StateGraph(State)
    nodes: tuple[Any, ...] = (first, last, other)
    for node in nodes:
        graph.add_node(node.__name__, dual_runnable(blocking(node), node, node.__name__), input_schema=State)
        graph.add_edge(node.__name__, END) if node is not first else graph.add_edge(START, "first")
    graph.add_conditional_edges("first", dual_runnable(blocking(by_state), by_state, "by_state"), ["last", "other"])
    route_by_update(graph, "first", "by_state", by_update)
    compiled = graph.compile(checkpointer=InMemorySaver())
    skip_unused_callbacks(compiled)
    return compiled


async def test_an_edge_routes_by_the_update_of_its_node() -> None:
    given: list[Any] = []

    def route(update: Any, config: RunnableConfig) -> list[Send]:
        given.append((update.update, config["configurable"]["thread_id"]))
        return [Send("other", "sent")]

    graph = routed_graph(route)
    results = [await graph.ainvoke({"word": ""}, thread("1")), graph.invoke({"word": ""}, thread("1"))]

    assert ([result["routed"] for result in results], given) == ([["sent"]] * 2, [([("word", "written")], "1")] * 2)


async def test_an_edge_routes_by_the_state_if_the_update_does_not_suffice() -> None:
    graph = routed_graph(lambda update, config: None)
    results = [await graph.ainvoke({"word": ""}, thread("1")), graph.invoke({"word": ""}, thread("1"))]

    assert [result["routed"] for result in results] == [["written"]] * 2
