"""A session read as a recording."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import edit, reject
from graph_agent.errors import InputError
from graph_agent.testing import read_recording


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def _calls(*calls: tuple[str, str, dict[str, Any]]) -> str:
    return json.dumps({"tool_calls": [{"id": id_, "name": name, "arguments": args} for id_, name, args in calls]})


async def test_a_recording_has_the_calls_as_planned_and_as_run() -> None:
    saver = InMemorySaver()
    plan = _calls(("c1", "pay", {"amount": 3}), ("c2", "pay", {"amount": 4}))
    model = ScriptedChatModel([plan, "No more actions.", "Done.", "Bye."])
    agent = create_graph_agent(model, tools=[pay], config=LoopConfig(approve=["pay"]), checkpointer=saver)
    session = Session(agent, "s1")
    await session.run("Pay 3 and 4.", input_id="first")
    await session.resume({"decisions": {"c1": edit({"amount": 1}), "c2": reject("no")}})
    result = await session.run("Thanks.")

    recording = await read_recording(saver, "s1", writes=lambda name: True)

    first, second = recording.inputs
    assert {
        "inputs": [(each.number, each.input_id, each.content, each.answer, each.status) for each in recording.inputs],
        "replies": [
            (step.number, reply.content, [call["arguments"] for call in reply.tool_calls])
            for step in first.steps
            for reply in step.replies
        ],
        "calls": [
            (step, c.id, c.arguments, c.effect, c.started, c.result and c.result.value) for step, c in first.calls
        ],
        "usage": second.usage,
        "gaps": recording.gaps,
    } == {
        "inputs": [
            (1, "first", "Pay 3 and 4.", "Done.", "COMPLETED"),
            (2, None, "Thanks.", "Bye.", "COMPLETED"),
        ],
        "replies": [(1, "", [{"amount": 3}, {"amount": 4}]), (2, "No more actions.", []), (2, "Done.", [])],
        "calls": [
            (1, "c1", {"amount": 1}, "write", True, "paid 1"),
            (1, "c2", {"amount": 4}, "write", False, "Not run: a person rejected this call. Reason: no"),
        ],
        "usage": result.usage,
        "gaps": (),
    }


async def test_a_recording_names_replies_that_are_not_stored() -> None:
    saver = InMemorySaver()
    right = json.dumps({"status": "done", "action": "", "tools": []})
    model = ScriptedChatModel(['{"status": "continue", "tools": [{"tool": "pay"', right, "Done."])
    config = LoopConfig(tool_calling="wave")
    await Session(create_graph_agent(model, tools=[pay], config=config, checkpointer=saver), "s1").run("Pay.")

    recording = await read_recording(saver, "s1")

    replies = [reply for step in recording.input(-1).steps for reply in step.replies]
    assert ([(each.is_stored, each.content) for each in replies], recording.gaps) == (
        [(False, ""), (True, ""), (True, "Done.")],
        ("Input 1: a reply for the plan is not stored, because a hook or a repair replaced it.",),
    )


async def test_an_unknown_session_or_input_is_refused() -> None:
    with pytest.raises(InputError, match="There is no session 's1'"):
        await read_recording(InMemorySaver(), "s1")
