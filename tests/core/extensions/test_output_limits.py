"""Limits of the displayed output: by the tool's marks, its kind, and the run's configuration."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.core.extensions.truncation import OutputLimits, output_limits, truncate_output
from tests.support.agents import asks, says, thread


@pytest.mark.parametrize(
    ("name", "marks", "set_", "limits"),
    [
        ("anything", {}, {}, (30_000, 256, "head_tail")),
        ("anything", {}, {"max_output_chars": 500}, (500, 256, "head_tail")),
        ("read_file", {}, {}, (50_000, 2_000, "head_tail")),
        ("files.Read_File", {}, {}, (50_000, 2_000, "head_tail")),
        ("read_file", {}, {"max_output_chars": 500}, (500, 2_000, "head_tail")),
        ("read_file", {}, {"max_output_chars": 90_000}, (50_000, 2_000, "head_tail")),
        ("read_file", {}, {"max_output_lines": 10}, (50_000, 10, "head_tail")),
        ("read_file", {"max_output_chars": 700}, {"max_output_chars": 500}, (700, 2_000, "head_tail")),
        ("read_file", {"kind": "listing"}, {}, (20_000, 500, "head_tail")),
        ("anything", {"kind": "search", "truncate": "tail"}, {}, (20_000, 200, "tail")),
        ("anything", {"kind": "of my own"}, {}, (30_000, 256, "head_tail")),
        ("bash", {}, {}, (30_000, 256, "head_tail")),
        ("grep", {}, {}, (20_000, 200, "head_tail")),
        ("glob", {}, {}, (20_000, 500, "head_tail")),
        ("delegate_to_grep", {}, {}, (20_000, 500, "head_tail")),
    ],
)
def test_the_limits_of_a_tool(name: str, marks: dict[str, Any], set_: dict[str, Any], limits: Any) -> None:
    assert output_limits(name, marks, LoopConfig(**set_)) == OutputLimits(*limits)


def text(size: int) -> dict[str, Any]:
    return {"type": "text", "text": "x" * size}


IMAGE = {"type": "image", "url": "https://example.invalid/a.png"}


def left_out(characters: int, offset: int) -> str:
    return (
        f"[… {characters} characters left out here; the history keeps the whole output; "
        f'read on with read_result(id="id", offset={offset}) …]'
    )


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ([text(50), IMAGE, text(50)], None),
        (
            [text(30), IMAGE, "y" * 60, IMAGE, text(300)],
            [text(30), IMAGE, f"{'y' * 20}\n{left_out(290, 50)}", IMAGE, text(50)],
        ),
        (
            [text(10)] * 40,
            [*[text(10)] * 5, {"type": "text", "text": left_out(300, 50)}, *[text(10)] * 5],
        ),
        (
            [IMAGE, text(300), IMAGE],
            [IMAGE, {"type": "text", "text": f"{'x' * 50}\n{left_out(200, 50)}\n{'x' * 50}"}, IMAGE],
        ),
    ],
    ids=["fits", "several", "many small ones", "one long one"],
)
def test_an_output_in_blocks_is_cut_like_one_text(content: list[Any], shown: list[Any] | None) -> None:
    settings = LoopConfig(offload_over_chars=100)

    assert truncate_output(content, settings, {}, call("id")) == (shown or content, shown is not None)


def call(id_: str) -> Any:
    return {"id": id_, "name": "anything", "arguments": {}}


def printing(name: str, output: str, **marks: Any) -> BaseTool:
    """A tool with a constant output."""

    async def print_output() -> str:
        return output

    return StructuredTool.from_function(coroutine=print_output, name=name, description="Say it.", metadata=marks)


async def shown_by(graph: Any) -> list[tuple[int, bool]]:
    """For each call: the number of displayed characters, and whether the output was truncated."""
    result = await graph.ainvoke(says("go"), thread())
    return [(len(m.text), "left out here" in m.text) for m in result["messages"] if m.type == "tool"]


async def test_the_kind_of_a_tool_counts_in_the_loop() -> None:
    tools = [printing(name, "x" * 40_000) for name in ("read_file", "other")]
    calls = asks(("1", "read_file", {}), ("2", "other", {}))
    graph = create_graph_agent(ScriptedChatModel([calls, "No more actions.", "Done."]), tools=tools)

    whole, cut = await shown_by(graph)

    assert (whole, cut[1], cut[0] < 30_200) == ((40_000, False), True, True)


async def test_a_delegates_answer_is_cut_like_an_output_and_kept_whole() -> None:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [("assistant", "x" * 25_000)]}

    inner = StateGraph(MessagesState)
    inner.add_node("answer", answer)
    inner.add_edge(START, "answer")
    inner.add_edge("answer", END)
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "No more actions.", "Done."]
    graph = create_graph_agent(
        ScriptedChatModel(script), delegates=[GraphDelegate("r", "R.", inner.compile())], checkpointer=InMemorySaver()
    )

    ((size, cut),) = await shown_by(graph)

    events = (await graph.aget_state(thread())).values["events"]
    kept = [len(entry["content"]) for entry in events if entry["type"] == "delegation_response"]
    assert (size < 20_200, cut, kept) == (True, True, [25_000])
