"""A run of an agent with a checkpointer and without a `thread_id` is refused, with the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.errors import InputError
from tests.support.agents import says, thread

MISSING = r"has no thread_id.*configurable.*thread_id"


def agent(**options: Any) -> Any:
    return create_graph_agent(ScriptedChatModel(["Hello."], cycle=True), **options)


@pytest.mark.parametrize("config", [None, {}, {"configurable": {}}, {"recursion_limit": 9}])
@pytest.mark.parametrize(
    "call",
    [
        lambda graph, config: graph.invoke(says("x"), config),
        lambda graph, config: list(graph.stream(says("x"), config)),
        lambda graph, config: graph.update_state(config or {}, says("x")),
    ],
    ids=["invoke", "stream", "update_state"],
)
def test_a_blocking_run_without_a_thread_is_refused(call: Callable[..., Any], config: Any) -> None:
    with pytest.raises(InputError, match=MISSING):
        call(agent(checkpointer=InMemorySaver()), config)


async def test_a_run_without_a_thread_is_refused() -> None:
    graph = agent(checkpointer=InMemorySaver())

    with pytest.raises(InputError, match=MISSING):
        await graph.ainvoke(says("x"))
    with pytest.raises(ValueError, match=MISSING):
        await anext(aiter(graph.astream(says("x"))))
    with pytest.raises(InputError, match=MISSING):
        await graph.aupdate_state({}, says("x"))


async def test_a_thread_may_come_from_the_graph_or_from_a_surrounding_run() -> None:
    saved = agent(checkpointer=InMemorySaver())
    parent: Any = StateGraph(MessagesState)
    parent.add_node("child", saved)
    parent.add_edge(START, "child")

    runs = [
        await saved.with_config(thread()).ainvoke(says("x")),
        await parent.compile(checkpointer=InMemorySaver()).ainvoke(says("x"), thread()),
        # Neither stores anything.
        await parent.compile().ainvoke(says("x")),
        await agent().ainvoke(says("x")),
        await agent(checkpointer=False).ainvoke(says("x")),
    ]

    assert [run["messages"][-1].text for run in runs] == ["Hello."] * 5
