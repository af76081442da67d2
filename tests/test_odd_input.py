"""Odd things said by users, models and tools: nothing is lost, and no checkpoint or request breaks on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver
from graph_agent.text import plain
from tests.agents import add, dialogue, echo, says, thread


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (10**30, str(10**30)),
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
        (2**64, str(2**64)),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
    ids=str,
)
def test_numbers_that_no_store_holds_become_text(value: Any, stored: Any) -> None:
    assert plain({"a": [value]}) == {"a": [stored]}


def test_what_is_nested_too_deeply_is_a_clear_error() -> None:
    value: Any = []
    for _ in range(5000):
        value = [value]

    with pytest.raises(ValueError, match="more than 200 levels deep"):
        plain(value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"a": 10**30, "b": 1}, ("success", str(10**30 + 1))),
        ({"a": json.loads("[" * 400 + "]" * 400), "b": 1}, ("error", "The arguments cannot be used: ")),
    ],
    ids=["huge integer", "deep"],
)
async def test_odd_arguments_reach_the_tool_or_the_model(arguments: Any, told: tuple[str, str], tmp_path: Path) -> None:
    reply = AIMessage("", tool_calls=[{"id": "1", "name": "add", "args": arguments}])
    async with open_saver(f"sqlite:///{tmp_path}/odd.db") as saver:
        model = ScriptedChatModel([reply, "No more actions.", "Done."])
        graph = create_graph_agent(model, tools=[add], checkpointer=saver)

        result = await graph.ainvoke(says("go"), thread())

    answer = next(message for message in result["messages"] if isinstance(message, ToolMessage))
    assert (answer.status, answer.text.startswith(told[1]), result["status"]) == (told[0], True, "COMPLETED")


async def test_text_that_no_utf8_holds_does_not_poison_a_session(tmp_path: Path) -> None:
    said = AIMessage("m \udc00", tool_calls=[{"id": "i\ud800", "name": "echo", "args": {"text": "x"}}])
    async with open_saver(f"sqlite:///{tmp_path}/odd.db") as saver:
        model = ScriptedChatModel([said, "No more actions.", "a \ud83d", "No more actions.", "Fine."])
        graph = create_graph_agent(model, tools=[echo], checkpointer=saver)
        await graph.ainvoke(says("u \ud83d\x00"), thread())

        result = await graph.ainvoke(says("again"), thread())

    sent = "".join(message.text for request in model.requests for message in request.messages)
    kept = dialogue(result["messages"])
    assert (sent.encode() and True, kept[1:4], kept[-1]) == (
        True,
        [("ai", "m \ufffd"), ("tool", "x"), ("ai", "a \ufffd")],
        ("ai", "Fine."),
    )


@pytest.mark.parametrize(
    ("update", "refused"),
    [
        ({"messages": [ToolMessage("other", tool_call_id="zzz")]}, "a ToolMessage"),
        ({"messages": [HumanMessage("hi")]}, "a HumanMessage"),
        ({"messages": [42]}, "a int"),
        ({"messages": [], "status": "COMPLETED"}, "the state field 'status'"),
    ],
    ids=["foreign result", "message", "no message", "state"],
)
async def test_a_command_cannot_break_the_history(update: dict[str, Any], refused: str) -> None:
    @tool
    async def note(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Answer with a command."""
        mine = ToolMessage("noted", tool_call_id=call_id)
        return Command(update={**update, "messages": [mine, *update["messages"]]})

    reply = AIMessage("", tool_calls=[{"id": "1", "name": "note", "args": {}}])
    graph = create_graph_agent(ScriptedChatModel([reply, "No more actions.", "Done."]), tools=[note])

    result = await graph.ainvoke(says("go"))

    assert dialogue(result["messages"])[2:] == [
        ("tool", f"The tool ran, but asked for what this agent does not let it: {refused}."),
        ("ai", "Done."),
    ]
