"""State that a crash leaves of writing delegates and subgraphs, with and without a saver of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from graph_agent import A2ADelegate, GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.delegation import Delegation, DelegationResult
from tests.support.a2a_servers import serving_here
from tests.support.agents import asks, says
from tests.support.gates import Gate, gated_tool, until
from tests.support.result_texts import UNKNOWN

DELEGATE = [asks(("d", "delegate_to_scribe", {"task": "write"})), "No more actions.", "Done."]


def writer(ran: list[str]) -> BaseTool:
    @tool
    async def write() -> str:
        """Change something."""
        ran.append("write")
        return "written"

    return write


async def stopped_within(gate: Gate, ran: list[str], *, checkpointer: Any, ledger: bool = False) -> Session:
    """A session whose run was cancelled after its delegate had written, while it waited at the gate."""
    script = [asks(("w", "write", {})), asks(("r", "look", {})), "No more actions.", "Written."]
    tools = [writer(ran), gated_tool(gate, "look", effect="read")]
    inner = create_graph_agent(ScriptedChatModel(script), tools=tools, checkpointer=checkpointer)
    outer = create_graph_agent(
        ScriptedChatModel(DELEGATE),
        delegates=[GraphDelegate("scribe", "Writes.", inner)],
        checkpointer=InMemorySaver(),
        config=LoopConfig(effect_ledger=ledger),
    )
    talk = Session(outer, "s1")
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    gate.open()
    return talk


@pytest.mark.parametrize("ledger", [False, True])
async def test_new_input_marks_an_interrupted_delegation_as_unknown(ledger: bool) -> None:
    ran: list[str] = []
    talk = await stopped_within(Gate(), ran, checkpointer=None, ledger=ledger)

    await talk.run("never mind")

    responses = [(e["status"], e["content"]) for e in await talk.events() if e["type"] == "delegation_response"]
    assert (ran, responses) == (["write"], [("unknown", UNKNOWN)])


@pytest.mark.parametrize(
    ("checkpointer", "outcome"),
    [(None, "Written."), (True, "Written."), (False, {"error": UNKNOWN})],
    ids=["with its caller", "its own history", "nothing kept"],
)
async def test_a_delegate_without_a_saver_is_not_called_twice(checkpointer: Any, outcome: Any) -> None:
    ran: list[str] = []
    talk = await stopped_within(Gate(), ran, checkpointer=checkpointer)

    result = await talk.resume()

    assert (ran, result.results) == (["write"], {"d": outcome})


@pytest.mark.parametrize("durability", [None, "sync", "async", "exit"])
async def test_a_plain_graph_without_a_saver_can_be_a_delegate(durability: Any) -> None:
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("say", lambda state: {"messages": [("ai", "Said.")]})
    graph.add_edge(START, "say")
    graph.add_edge("say", END)
    delegate = GraphDelegate("scribe", "Writes.", graph.compile(checkpointer=False))
    outer = create_graph_agent(ScriptedChatModel(DELEGATE), delegates=[delegate], checkpointer=InMemorySaver())

    result = await outer.ainvoke(says("go"), {"configurable": {"thread_id": "s1"}}, durability=durability)

    assert result["messages"][2].text == "Said."


class SlowSaver(InMemorySaver):
    """A slow saver that records when it has stored a plan's calls."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self.order = order

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        for _ in range(50):
            await asyncio.sleep(0)
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        if "ready" in new_versions:
            self.order.append("plan stored")
        return stored


def under_a_parent(order: list[str], child: Any, saver: Any) -> Any:
    parent: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    parent.add_node("child", child)
    parent.add_edge(START, "child")
    parent.add_edge("child", END)
    return parent.compile(checkpointer=saver)


@pytest.mark.parametrize(
    ("durability", "first"), [(None, "plan stored"), ("sync", "plan stored"), ("exit", "write")], ids=str
)
async def test_a_subgraphs_plan_is_stored_before_it_writes(durability: Any, first: str) -> None:
    order: list[str] = []
    model = ScriptedChatModel([asks(("w", "write", {})), "No more actions.", "Done."])
    graph = under_a_parent(order, create_graph_agent(model, tools=[writer(order)]), SlowSaver(order))

    await graph.ainvoke(says("go"), {"configurable": {"thread_id": "s1"}}, durability=durability)

    assert order[0] == first


@pytest.mark.parametrize("durability", [None, "sync", "async", "exit"])
async def test_a_subgraph_without_a_saver_runs_under_every_durability(durability: Any) -> None:
    order: list[str] = []
    model = ScriptedChatModel([asks(("w", "write", {})), "No more actions.", "Done."])
    child = create_graph_agent(model, tools=[writer(order)], checkpointer=False)
    graph = under_a_parent(order, child, InMemorySaver())

    result = await graph.ainvoke(says("go"), {"configurable": {"thread_id": "s1"}}, durability=durability)

    assert (order, result["messages"][-1].text) == (["write"], "Done.")


class Slow:
    """A delegate that never answers, or at once."""

    name = "scribe"
    description = "Writes."

    def __init__(self, *, suppresses: bool = False) -> None:
        self._suppresses = suppresses

    async def run(self, delegation: Delegation) -> DelegationResult:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self._suppresses:
                    raise
                self._suppresses = False


class Asleep(Slow):
    async def run(self, delegation: Delegation) -> DelegationResult:
        await asyncio.sleep(0.3)
        return DelegationResult("Written.")


def slow_graph() -> GraphDelegate:
    script = [asks(("r", "look", {})), "Written."]
    return GraphDelegate(
        "scribe", "Writes.", create_graph_agent(ScriptedChatModel(script), tools=[gated_tool(Gate(), "look")])
    )


AT_LIMIT = (
    "The delegate 'scribe' was stopped at its time limit of 0.1 s. It is not known whether it took effect; check "
    "before repeating it."
)


@pytest.mark.parametrize(
    ("delegate", "limits", "expected"),
    [
        pytest.param(Slow(), {"tool_timeout_s": 0.1}, {"error": AT_LIMIT}, id="its own class"),
        pytest.param(Slow(suppresses=True), {"tool_timeout_s": 0.1}, {"error": AT_LIMIT}, id="suppressed cancellation"),
        pytest.param(slow_graph(), {"tool_timeout_s": 0.1}, {"error": AT_LIMIT}, id="a graph"),
        pytest.param(Slow(), {"delegate_timeout_s": 0.1}, {"error": AT_LIMIT}, id="a limit of delegates"),
        pytest.param(Asleep(), {"tool_timeout_s": 0.1, "delegate_timeout_s": 60}, "Written.", id="a longer limit"),
    ],
)
async def test_a_delegation_ends_at_its_time_limit(
    delegate: Any, limits: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graph_agent.base._internal.sync_bridge.GRACE_S", 0.2)
    graph = create_graph_agent(ScriptedChatModel(DELEGATE), delegates=[delegate], checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go", context=limits)

    assert (result.results, result.answer) == ({"d": expected}, "Done.")


async def test_a_remote_task_is_cancelled_at_the_time_limit_of_its_delegation() -> None:
    gate = Gate()
    script = [asks(("r", "look", {})), "Written."]
    remote = create_graph_agent(
        ScriptedChatModel(script), tools=[gated_tool(gate, "look")], checkpointer=InMemorySaver()
    )
    async with serving_here(remote) as url:
        graph = create_graph_agent(
            ScriptedChatModel(DELEGATE),
            delegates=[A2ADelegate("scribe", url)],
            checkpointer=InMemorySaver(),
            config=LoopConfig(delegate_timeout_s=4),
        )
        result = await Session(graph, "s1").run("go")
        await until(lambda: gate.cancelled)

    assert result.results == {"d": {"error": AT_LIMIT.replace("0.1 s", "4 s")}}
