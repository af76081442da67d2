"""Assumptions of the design about LangGraph."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from graph_agent import LoopConfig, ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import ECHO_SCRIPT, asks, dialogue, echo, finishing_in_reverse, kinds, says, thread
from tests.support.result_texts import UNKNOWN
from tests.support.warm_process import warm_python


async def test_new_input_after_a_cancel_keeps_what_had_finished() -> None:
    running = asyncio.Event()
    finished = asyncio.Event()

    @tool
    async def quick() -> str:
        """Finish at once."""
        return "quick is done"

    @tool
    async def endless() -> str:
        """Never finish."""
        running.set()
        await finished.wait()
        return "unreachable"

    model = ScriptedChatModel([asks(("q", "quick", {}), ("e", "endless", {})), "No more actions.", "Quick is done."])
    graph = create_graph_agent(model, tools=[quick, endless], checkpointer=InMemorySaver())
    run = asyncio.create_task(graph.ainvoke(says("go"), thread(), durability="sync"))
    await running.wait()
    while not any(task.result for task in (await graph.aget_state(thread())).tasks):
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)

    result = await graph.ainvoke(says("and now?"), thread())

    assert dialogue(result["messages"]) == [
        ("human", "go"),
        ("ai", ""),
        ("tool", "quick is done"),
        ("tool", UNKNOWN),
        ("human", "and now?"),
        ("ai", "Quick is done."),
    ]


async def test_new_input_after_a_sigkill_keeps_what_had_finished(tmp_path: Path) -> None:
    path = tmp_path / "killed.db"
    process = await asyncio.create_subprocess_exec(warm_python(), "-m", "tests.support.killed_run", str(path))
    assert await process.wait() == -signal.SIGKILL
    model = ScriptedChatModel(["No more actions.", "Quick is done."])
    async with open_saver(f"sqlite:///{path}") as saver:
        graph = create_graph_agent(model, tools=[echo], checkpointer=saver)

        result = await graph.ainvoke(says("and now?"), thread())

        events = await SessionMemory(graph).get_session_events("s1")
    results = [(e["id"], e["status"], e["content"]) for e in events if e["type"] == "tool_result"]
    assert (dialogue(result["messages"]), results) == (
        [
            ("human", "go"),
            ("ai", ""),
            ("tool", "quick is done"),
            ("tool", UNKNOWN),
            ("human", "and now?"),
            ("ai", "Quick is done."),
        ],
        [("q", "success", "quick is done"), ("e", "unknown", UNKNOWN)],
    )


async def test_prose_with_calls_stays_out_of_the_token_stream_of_compose() -> None:
    script = [asks(("c", "echo", {"text": "x"}), content="Let me look."), "No more actions.", "Here it is."]
    config = LoopConfig(finalize="compose")
    graph = create_graph_agent(ScriptedChatModel(script), tools=[echo], config=config)

    streamed = [
        (metadata["langgraph_node"], chunk.text)
        async for chunk, metadata in graph.astream(says("go"), stream_mode="messages")
        if chunk.text and chunk.type != "tool"
    ]

    assert ({node for node, _ in streamed}, "".join(text for _, text in streamed)) == ({"finalize"}, "Here it is.")


def test_the_drawing_shows_every_node_and_edge() -> None:
    graph = create_graph_agent(ScriptedChatModel(["hi"]), tools=[echo])

    drawn = {(edge.source, edge.target, edge.conditional) for edge in graph.get_graph().edges}

    assert drawn == {
        ("__start__", "plan", False),
        ("plan", "tools", True),
        ("plan", "delegate", True),
        ("plan", "finalize", True),
        ("tools", "plan", False),
        ("delegate", "plan", False),
        ("finalize", "plan", True),
        ("finalize", "__end__", True),
    }


@pytest.mark.parametrize(
    "given",
    [
        [("user", "hi")],
        ["hi"],
        "hi",
        ("user", "hi"),
        HumanMessage("hi"),
        [{"role": "user", "content": "hi"}],
        {"role": "user", "content": "hi"},
    ],
    ids=["pairs", "texts", "text", "pair", "message", "mappings", "mapping"],
)
async def test_the_state_read_twice_is_equal(given: Any) -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], checkpointer=InMemorySaver())
    returned = await graph.ainvoke({"messages": given}, thread())

    first = await graph.aget_state(thread())
    second = await graph.aget_state(thread())

    ids = [message.id for message in first.values["messages"]]
    assert (first.values, ids, len(set(ids)), None in ids) == (
        second.values,
        [message.id for message in returned["messages"]],
        4,
        False,
    )


class ParentContext(TypedDict):
    tenant: str


class ParentState(TypedDict):
    messages: list[Any]


@pytest.mark.parametrize("context", [{"tenant": "a"}, {"tenant": "a", "max_steps": 1}], ids=["foreign", "overlapping"])
async def test_the_graph_under_a_parent_with_its_own_context(context: Any) -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo])
    parent = StateGraph(ParentState, context_schema=ParentContext)
    parent.add_node("agent", graph)
    parent.add_edge(START, "agent")
    parent.add_edge("agent", END)

    result = await parent.compile(checkpointer=InMemorySaver()).ainvoke(
        {"messages": [HumanMessage("hi")]}, thread(), context=context
    )

    assert [type(message) for message in result["messages"]] == [HumanMessage, AIMessage, ToolMessage, AIMessage]


async def test_events_come_in_call_order_whichever_finished_first() -> None:
    slow, fast = finishing_in_reverse()
    model = ScriptedChatModel([asks(("1", "slow", {}), ("2", "fast", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[slow, fast], checkpointer=InMemorySaver())
    await graph.ainvoke(says("go"), thread())

    events = await SessionMemory(graph).get_session_events("s1")

    assert [(kind, event.get("id")) for kind, event in zip(kinds(events), events, strict=True)] == [
        ("user_message", None),
        ("status", None),
        ("plan", None),
        ("tool_call", "1"),
        ("tool_call", "2"),
        ("tool_result", "1"),
        ("tool_result", "2"),
        ("plan", None),
        ("agent_response", None),
        ("status", None),
    ]
