"""Offloaded outputs: displayed in part, and read with `read_result`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import AgentContext, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.core.extensions.read_result import MOST_RESULT_CHARS, read_part
from graph_agent.errors import ConfigError
from graph_agent.persistence import open_saver
from graph_agent.state.events import event
from tests.support.agents import asks, echo, says, thread

WHOLE = "".join(f"{i:05d}," for i in range(10_000))
OFFLOADING = LoopConfig(offload_over_chars=100)


@tool
async def dump() -> str:
    """Give more than can be shown."""
    return WHOLE


def results(messages: list[Any]) -> list[str]:
    return [message.text for message in messages if message.type == "tool"]


def reads(id_: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
    return ("r", "read_result", {"id": id_, **arguments})


CUT = (
    f"{WHOLE[:50]}\n[… 59,900 characters left out here; the history keeps the whole output; "
    f'read on with read_result(id="d", offset=50) …]\n{WHOLE[-50:]}'
)
PART = f"[Characters 50 to 350 of 60000; go on at offset 350]\n{WHOLE[50:350]}"


@pytest.mark.parametrize("mode", ["native", "text"])
async def test_the_model_reads_on_where_an_output_was_cut(mode: Any) -> None:
    script = [asks(("d", "dump", {})), asks(reads("d", offset=50, length=300)), "No more actions.", "Done."]
    model = ScriptedChatModel(script)
    graph = create_graph_agent(
        model, tools=[dump], config=LoopConfig(offload_over_chars=100, tool_calling=mode), checkpointer=InMemorySaver()
    )

    result = await graph.ainvoke(says("go"), thread())

    with_overrides = model.requests[2].messages[-1].text
    events = (await graph.aget_state(thread())).values["events"]
    truncated = [entry["truncated"] for entry in events if entry["type"] == "tool_result"]
    assert (results(result["messages"]), PART in with_overrides, truncated) == ([CUT, PART], True, [True, False])


async def test_reading_goes_on_after_a_restart(tmp_path: Path) -> None:
    scripts = [
        [asks(("d", "dump", {})), "No more actions.", "Done."],
        [asks(reads("d", offset=50, length=300)), "No more actions.", "Done."],
    ]
    seen: list[str] = []
    for script in scripts:
        async with open_saver(f"sqlite:///{tmp_path}/sessions.db") as saver:
            graph = create_graph_agent(ScriptedChatModel(script), tools=[dump], config=OFFLOADING, checkpointer=saver)
            result = await graph.ainvoke(says("go"), thread())
            seen = results(result["messages"])

    assert seen == [CUT, PART]


async def test_the_parts_add_up_to_the_whole_output() -> None:
    offsets = range(0, len(WHOLE), MOST_RESULT_CHARS)
    wave = asks(*((f"r{at}", "read_result", {"id": "d", "offset": at, "length": 10**9}) for at in offsets))
    model = ScriptedChatModel([asks(("d", "dump", {})), wave, "No more actions.", "Done."])

    result = await create_graph_agent(model, tools=[dump], config=OFFLOADING).ainvoke(says("go"))

    parts = [text.partition("\n")[2] for text in results(result["messages"])[1:]]
    assert ("".join(parts), len(parts)) == (WHOLE, 3)


async def test_an_unreadable_id_is_reported() -> None:
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("1", "read_result", {"id": "D"}),
        ("2", "read_result", {"id": "d", "offset": 60_000}),
        ("3", "read_result", {"id": "d", "offset": -1}),
    ]
    script = [asks(("e", "echo", {"text": "x"}), ("d", "dump", {})), asks(*calls), "No more actions.", "Done."]
    graph = create_graph_agent(ScriptedChatModel(script), tools=[echo, dump], config=OFFLOADING)

    result = await graph.ainvoke(says("go"))

    reports = [(m.text, m.status) for m in result["messages"] if m.type == "tool"][2:]
    assert reports == [
        ("No call 'D' has a result yet; those that can be read, newest first: 'd', 'e'.", "error"),
        ("The output of 'd' has 60000 characters; an offset of 60000 is past its end.", "error"),
        (
            "The arguments do not fit the tool 'read_result': offset: Input should be greater than or equal to 0. "
            "It takes: id, offset, length.",
            "error",
        ),
    ]


async def test_the_tool_is_offered_only_where_outputs_are_offloaded() -> None:
    offered = []
    for config in (OFFLOADING, LoopConfig()):
        model = ScriptedChatModel(["No more actions.", "Done."])
        await create_graph_agent(model, tools=[echo], config=config).ainvoke(says("go"))
        offered.append([schema["function"]["name"] for schema in model.requests[0].tools])

    assert offered == [["echo", "read_result"], ["echo"]]


@pytest.mark.parametrize(("built", "of_the_run", "cut"), [(10**6, 100, True), (100, 10**6, True), (None, 100, False)])
async def test_a_run_changes_the_number_of_an_agent_that_has_one(built: int | None, of_the_run: int, cut: bool) -> None:
    model = ScriptedChatModel([asks(("d", "dump", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[dump], config=LoopConfig(offload_over_chars=built))

    result = await graph.ainvoke(says("go"), context=AgentContext(offload_over_chars=of_the_run))

    (shown,) = results(result["messages"])
    limit = min(of_the_run if built else 10**6, LoopConfig().max_output_chars)
    assert ("read on with" in shown, abs(len(shown) - limit) < 200) == (cut, True)


def test_a_tool_of_that_name_is_refused() -> None:
    taken = echo.model_copy(update={"name": "read_result"})

    with pytest.raises(ConfigError) as raised:
        create_graph_agent(ScriptedChatModel(["x"]), tools=[taken], config=OFFLOADING)

    assert str(raised.value) == (
        "A tool is named 'read_result', which offload_over_chars=100 keeps for the agent's own; rename the tool, or "
        "leave offload_over_chars out."
    )


def answered(id_: str, content: Any, name: str = "t") -> dict[str, Any]:
    return event("tool_result", 1, id=id_, name=name, status="success", content=content, truncated=False)


@given(st.text(max_size=50), st.integers(0, 60), st.integers(1, 60))
def test_a_part_is_the_exact_slice(text: str, offset: int, length: int) -> None:
    events = [answered("a", text), answered("b", "other")]
    if offset and offset >= len(text):
        with pytest.raises(ToolException, match="past its end"):
            read_part(events, "a", offset, length)
        return

    heading, _, part = read_part(events, "a", offset, length).partition("\n")

    end = offset + len(part)
    rest = "this is the end" if end == len(text) else f"go on at offset {end}"
    assert (part, heading) == (
        text[offset : offset + length],
        f"[Characters {offset} to {end} of {len(text)}; {rest}]",
    )


def test_the_newest_call_of_an_id_is_read_and_reading_itself_is_not() -> None:
    events = [
        answered("a", "old"),
        answered("a", [{"type": "text", "text": "n"}, {"type": "image", "url": "u"}, {"type": "text", "text": "ew"}]),
        event("delegation_response", 1, id="b", target="r", status="success", content="told"),
        answered("r", "part", name="read_result"),
    ]

    with pytest.raises(ToolException) as raised:
        read_part(events, "r", 0, 10)
    assert ([read_part(events, id_, 0, 10) for id_ in "ab"], str(raised.value)) == (
        [
            "[Characters 0 to 3 of 3; this is the end]\nnew",
            "[Characters 0 to 4 of 4; this is the end]\ntold",
        ],
        "No call 'r' has a result yet; those that can be read, newest first: 'b', 'a'.",
    )


def test_a_long_list_of_ids_is_cut_short() -> None:
    events = [answered(f"c{i}", "x") for i in range(25)]

    with pytest.raises(ToolException, match=r"newest first: 'c24', .*'c5', and 5 older ones\.$"):
        read_part(events, "x", 0, 10)
