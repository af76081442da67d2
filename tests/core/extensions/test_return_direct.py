"""Tools with `return_direct`: their result is the answer, without a further model call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, dialogue, echo, kinds, thread


@tool(return_direct=True)
def report(topic: str) -> str:
    """Write a report."""
    if topic == "nothing":
        raise ValueError("no topic")
    return f"Report on {topic}."


@tool(return_direct=True, response_format="content")
def table() -> Any:
    """Give a table."""
    return [{"type": "text", "text": "a | b"}]


def reports(*topics: str) -> str:
    return asks(*((f"c{number}", "report", {"topic": topic}) for number, topic in enumerate(topics, 1)))


def plan(status: str, *tools: tuple[str, str, dict[str, Any], list[str]]) -> str:
    listed = [{"id": id_, "tool": name, "args": args, "needs": needs} for id_, name, args, needs in tools]
    return json.dumps({"status": status, "tools": listed})


async def run(script: list[str], **config: Any) -> tuple[Any, Any]:
    model = ScriptedChatModel(script)
    graph = create_graph_agent(
        model, tools=[report, table, echo], config=LoopConfig(**config), checkpointer=InMemorySaver()
    )
    session = Session(graph, "s1")
    result = await session.run("go")
    model.assert_spent()
    return result, session


@pytest.mark.parametrize("finalize", ["auto", "direct", "compose"])
@pytest.mark.parametrize(
    ("tool_calling", "script"),
    [
        ("native", [reports("tea")]),
        ("text", [reports("tea")]),
        ("wave", [plan("continue", ("t1", "report", {"topic": "tea"}, []))]),
        ("wave", [plan("done", ("t1", "report", {"topic": "tea"}, []))]),
    ],
)
async def test_the_result_is_the_answer(finalize: Any, tool_calling: Any, script: list[str]) -> None:
    result, session = await run(script, finalize=finalize, tool_calling=tool_calling)

    events = [kind for kind in kinds(await session.events()) if kind not in ("status", "plan")]
    assert (result.answer, result.status, result.stop_reason, result.usage["model_calls"], events) == (
        "Report on tea.",
        "COMPLETED",
        "completed",
        1,
        ["user_message", "tool_call", "tool_result", "agent_response"],
    )


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ([reports("tea", "milk")], "Report on tea.\n\nReport on milk."),
        ([asks(("c1", "table", {}))], "a | b"),
        ([asks(("c1", "report", {"topic": "tea"}), ("c2", "echo", {"text": "x"})), "Both."], "Both."),
        ([reports("nothing"), "There is none."], "There is none."),
        ([reports("tea", "nothing"), "Half of it."], "Half of it."),
        ([asks(("c1", "echo", {"text": "x"})), reports("tea")], "Report on tea."),
    ],
    ids=["two", "blocks", "with another tool", "an error", "an error with a result", "in a later wave"],
)
async def test_a_wave_of_several_calls(script: list[str], answer: str) -> None:
    result, _ = await run(script)

    assert (result.answer, result.usage["model_calls"]) == (answer, len(script))


async def test_a_plan_of_several_levels_ends_with_its_results_only_where_all_are_direct() -> None:
    levels = [("a", "echo", {"text": "tea"}, []), ("b", "report", {"topic": "${a}"}, ["a"])]
    direct = [("a", "report", {"topic": "tea"}, []), ("b", "report", {"topic": "milk"}, ["a"])]

    mixed, _ = await run([plan("done", *levels), "Composed."], tool_calling="wave")
    whole, _ = await run([plan("done", *direct)], tool_calling="wave")

    assert (mixed.answer, whole.answer) == ("Composed.", "Report on tea.\n\nReport on milk.")


async def test_the_result_is_the_answer_at_a_limit_too() -> None:
    result, _ = await run([reports("tea")], max_steps=1)

    assert (result.answer, result.stop_reason) == ("Report on tea.", "completed")


async def test_the_history_holds_the_result_and_the_answer() -> None:
    model = ScriptedChatModel([reports("tea"), "Tea again."])
    graph = create_graph_agent(model, tools=[report], checkpointer=InMemorySaver())
    session = Session(graph, "s1")
    await session.run("go")

    await session.run("again")

    state = await graph.aget_state(thread())
    assert dialogue(state.values["messages"]) == [
        ("human", "go"),
        ("ai", ""),
        ("tool", "Report on tea."),
        ("ai", "Report on tea."),
        ("human", "again"),
        ("ai", "Tea again."),
    ]


async def test_the_result_is_streamed_as_the_answer() -> None:
    graph = create_graph_agent(ScriptedChatModel([reports("tea")]), tools=[report], checkpointer=InMemorySaver())

    parts = [part async for part in Session(graph, "s1").stream("go")]

    assert [part.text for part in parts if part.type == "token"] == ["Report on tea."]
