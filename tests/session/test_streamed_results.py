"""`stream_mode="messages"` has each tool result once, with its node, as that of `create_agent` has."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, create_graph_agent
from tests.support.agents import asks, echo, says, thread

CALLS = asks(("c1", "echo", {"text": "one"}), ("c2", "echo", {"text": "two"}))
PLAN = """{"status": "continue", "action": "look", "tools": [
    {"id": "c1", "tool": "echo", "args": {"text": "one"}}, {"id": "c2", "tool": "echo", "args": {"text": "two"}}]}"""
DONE = '{"status": "done", "action": "end", "tools": []}'
AS_TEXT = """<tool_call>{"name": "echo", "arguments": {"text": "one"}}</tool_call>
<tool_call>{"name": "echo", "arguments": {"text": "two"}}</tool_call>"""
MODES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "auto": ({}, [CALLS, "Done."]),
    "compose": ({"finalize": "compose"}, [CALLS, "No more actions.", "Done."]),
    "direct": ({"finalize": "direct"}, [CALLS, "Done."]),
    "text": ({"tool_calling": "text"}, [AS_TEXT, "Done."]),
    "wave": ({"tool_calling": "wave"}, [PLAN, DONE, "Done."]),
}


def in_parent(graph: Any) -> Any:
    parent: Any = StateGraph(MessagesState)
    parent.add_node("inner", graph)
    parent.add_edge(START, "inner")
    return parent.compile()


async def results(graph: Any, given: Any = None, **options: Any) -> list[tuple[str, str, str, str]]:
    """The tool results of the message stream: the outermost node's name, text, status and the node, sorted."""
    found = []
    async for item in graph.astream(given or says("hi"), thread(), stream_mode="messages", **options):
        namespace, (message, metadata) = item if options.get("subgraphs") else ((), item)
        if isinstance(message, ToolMessage):
            outer = namespace[0].partition(":")[0] if namespace else ""
            found.append((outer, message.text, message.status, metadata["langgraph_node"]))
    return sorted(found)


@pytest.mark.parametrize("place", ["direct", "subgraph", "hidden subgraph"])
@pytest.mark.parametrize("mode", MODES)
async def test_each_result_is_streamed_once_as_create_agent_does(mode: str, place: str) -> None:
    config, script = MODES[mode]
    agent: Any = create_graph_agent(ScriptedChatModel(script), [echo], config=LoopConfig(**config))
    other: Any = create_agent(ScriptedChatModel([CALLS, "Done."]), [echo])
    if place != "direct":
        agent, other = in_parent(agent), in_parent(other)
    options = {} if place == "hidden subgraph" else {"subgraphs": True}

    own, expected = await results(agent, **options), await results(other, **options)

    assert (own, len(own)) == (expected, 2)


def test_a_blocking_stream_has_each_result_once() -> None:
    agent = create_graph_agent(ScriptedChatModel([CALLS, "Done."]), [echo])

    found = [message.text for message, _ in agent.stream(says("hi"), stream_mode="messages") if message.type == "tool"]

    assert sorted(found) == ["one", "two"]


async def test_a_later_input_streams_only_its_own_results() -> None:
    again = asks(("c3", "echo", {"text": "three"}))
    agent = create_graph_agent(
        ScriptedChatModel([CALLS, "Done.", again, "Done."]), [echo], checkpointer=InMemorySaver()
    )

    found = [await results(agent), await results(agent)]

    assert found == [
        [("", "one", "success", "tools"), ("", "two", "success", "tools")],
        [("", "three", "success", "tools")],
    ]


async def test_results_of_calls_that_do_not_run_are_streamed() -> None:
    script = [asks(("c1", "missing", {}), ("c2", "echo", {"text": "two"}), ("c3", "echo", {"text": "three"})), "Done."]
    agent = create_graph_agent(ScriptedChatModel(script), [echo], config=LoopConfig(max_calls_per_wave=2))

    found = await results(agent)

    assert [(status, node) for _, _, status, node in found if status == "error"] + [
        (text, status, node) for _, text, status, node in found if status == "success"
    ] == [("error", "plan"), ("error", "tools"), ("two", "success", "tools")]


async def test_the_result_of_a_rejected_call_is_streamed() -> None:
    config = LoopConfig(approve=["echo"])
    agent = create_graph_agent(
        ScriptedChatModel([asks(("c1", "echo", {"text": "one"})), "Done."]),
        [echo],
        config=config,
        checkpointer=InMemorySaver(),
    )

    asked = await results(agent)
    answered = await results(agent, Command(resume={"decisions": [{"type": "reject"}]}))

    assert (asked, [(status, node) for _, _, status, node in answered]) == ([], [("error", "plan")])


async def test_a_delegates_own_results_are_streamed_with_subgraphs_alone() -> None:
    def team() -> Any:
        child = create_graph_agent(ScriptedChatModel([CALLS, "From the child."]), [echo])
        script = [asks(("d1", "delegate_to_child", {"task": "Go."})), "Done."]
        return create_graph_agent(ScriptedChatModel(script), delegates=[GraphDelegate("child", "Helps.", child)])

    found = [await results(team()), await results(team(), subgraphs=True)]

    assert found == [
        [("", "From the child.", "success", "delegate")],
        [
            ("", "From the child.", "success", "delegate"),
            ("delegate", "one", "success", "tools"),
            ("delegate", "two", "success", "tools"),
        ],
    ]


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
async def test_the_third_form_of_events_has_results_where_create_agent_has_them() -> None:
    agents: list[Any] = [
        create_graph_agent(ScriptedChatModel([CALLS, "Done."]), [echo]),
        create_agent(ScriptedChatModel([CALLS, "Done."]), [echo]),
    ]
    found = []
    for agent in agents:
        run: Any = await agent.astream_events(says("hi"), version="v3")
        found.append(
            [type(message).__name__ async for message in run.messages if message is not None].count("ToolMessage")
        )

    assert found == [0, 0]
