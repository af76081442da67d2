"""An agent in a graph of its user, in the three ways of `docs/guides/subgraphs.md`: what a cut-off run leaves."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from graph_agent import GraphAgent, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from tests.support.agents import asks

UNKNOWN = "It is not known whether the call ran or took effect"
THREAD: RunnableConfig = {"configurable": {"thread_id": "t1"}}
Way = Literal["kept", "plain", "session"]


class Desk(MessagesState):
    status: str


class Place:
    """The savers and the tool, which outlive a process."""

    def __init__(self) -> None:
        self.parent, self.own, self.begun = InMemorySaver(), InMemorySaver(), asyncio.Event()
        self.lent: list[str] = []

    async def lend(self, title: str) -> str:
        """Lend a book; the first call never ends."""
        self.lent.append(title)
        if not self.begun.is_set():
            self.begun.set()
            await asyncio.Event().wait()
        return f"Lent {title}."

    def desk(self, way: Way, *script: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
        """The graph around the agent, as a new process builds it."""
        saver: Any = {"kept": True, "plain": None, "session": self.own}[way]
        agent: GraphAgent = create_graph_agent(ScriptedChatModel([*script]), [self.lend], checkpointer=saver)

        async def ask(state: Desk, config: RunnableConfig) -> dict[str, Any]:
            question = state["messages"][-1]
            session = agent.session(config["configurable"]["thread_id"])
            result = await session.run(question.text, input_id=question.id)
            return {"messages": [("ai", result.answer)], "status": result.status}

        builder: Any = StateGraph(Desk)
        builder.add_node("library", ask if way == "session" else agent)
        builder.add_edge(START, "library")
        builder.add_edge("library", END)
        graph: CompiledStateGraph[Any, Any, Any, Any] = builder.compile(checkpointer=self.parent)
        return graph

    async def cut_off(self, way: Way) -> None:
        """Run an input until its call has begun, and cancel it, as the end of a process would."""
        desk = self.desk(way, asks(("a", "lend", {"title": "Dune"})))
        run = asyncio.create_task(desk.ainvoke(given("Lend Dune."), THREAD))
        await self.begun.wait()
        run.cancel()
        await asyncio.wait([run])


def given(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


@pytest.mark.parametrize("way", ["kept", "plain", "session"])
async def test_a_cut_off_run_continues_and_repeats_no_call(way: Way) -> None:
    place = Place()
    await place.cut_off(way)

    desk = place.desk(way, "It may be lent.")
    resumed = await desk.ainvoke(None, THREAD)

    assert (resumed["messages"][-1].text, resumed["status"], place.lent) == ("It may be lent.", "COMPLETED", ["Dune"])


@pytest.mark.parametrize(("way", "settled"), [("kept", True), ("plain", False), ("session", True)])
async def test_new_input_settles_the_open_calls_only_of_an_agent_that_keeps_its_conversation(
    way: Way, settled: bool
) -> None:
    place = Place()
    await place.cut_off(way)

    desk = place.desk(way, "It may be lent.")
    await desk.ainvoke(given("What happened?"), THREAD)

    state = await desk.aget_state(THREAD)
    texts = [message.text for message in state.values["messages"]]
    if way == "session":
        agent = create_graph_agent(ScriptedChatModel([]), checkpointer=place.own)
        texts = [str(each.get("content")) for each in await agent.session("t1").events()]
    assert (any(UNKNOWN in text for text in texts), place.lent) == (settled, ["Dune"])


@pytest.mark.parametrize("way", ["kept", "plain", "session"])
def test_a_session_of_the_graph_around_an_agent_is_refused(way: Way) -> None:
    desk = Place().desk(way)

    with pytest.raises(ConfigError) as refused:
        Session(desk, "t1")

    text = str(refused.value)
    assert ("'LangGraph' is no agent, and its node 'library' runs one" in text, "subgraphs.md" in text) == (True, True)
