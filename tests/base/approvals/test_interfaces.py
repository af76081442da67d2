"""Approval requests as agent-chat-ui and Agent Inbox read them, and the answers that both send."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.types import Command

from graph_agent import GraphDelegate
from tests.support.agents import asks, thread
from tests.support.approvals import Desk

ONE = asks(("1", "write", {"path": "a", "lines": 2}))


def drawn_by_agent_chat_ui(interrupt: Any) -> bool:
    """The conditions of agent-chat-ui's `isAgentInboxInterruptSchema`, on which it draws its buttons."""
    value = interrupt.value
    actions, configs = value.get("action_requests"), value.get("review_configs")
    if not (isinstance(actions, list) and actions and isinstance(configs, list) and configs):
        return False
    named = all(isinstance(one.get("name"), str) and isinstance(one.get("args"), dict) for one in actions)
    return named and all(
        isinstance(one.get("action_name"), str) and isinstance(one.get("allowed_decisions"), list) for one in configs
    )


def buttons_of_agent_inbox(interrupt: Any) -> tuple[str, list[str]]:
    """The call and the buttons that Agent Inbox reads from the first action, by its `normalizeInterrupt`."""
    offered = {"approve": "accept", "edit": "edit", "reject": "response"}
    allowed = interrupt.value["review_configs"][0]["allowed_decisions"]
    return interrupt.value["action_requests"][0]["name"], [offered[one] for one in allowed if one in offered]


async def test_both_interfaces_draw_their_buttons() -> None:
    desk = Desk(ONE)
    inner = Desk(ONE, checkpointer=None)
    lead = Desk(
        asks(("d", "delegate_to_scribe", {"task": "Write."})),
        delegates=[GraphDelegate("scribe", "Writes.", inner.graph)],
    )
    (own,) = (await desk.session.run("go")).interrupts
    (delegated,) = (await lead.session.run("go")).interrupts

    shown = ("write", ["accept", "edit", "response"])
    assert ([drawn_by_agent_chat_ui(one) for one in (own, delegated)], [buttons_of_agent_inbox(own)]) == (
        [True, True],
        [shown],
    )
    assert buttons_of_agent_inbox(delegated) == shown


@pytest.mark.parametrize(
    ("answer", "ran", "decided"),
    [
        ({"decisions": [{"type": "approve"}]}, ["wrote a"], "approve"),
        ({"decisions": [{"type": "reject", "message": "No."}]}, [], "reject"),
        (
            {"decisions": [{"type": "edit", "edited_action": {"name": "write", "args": {"path": "b"}}}]},
            ["wrote b"],
            "edit",
        ),
        ([{"type": "accept", "args": None}], ["wrote a"], "approve"),
        ([{"type": "accept", "args": {"action": "write", "args": {}}}], ["wrote a"], "approve"),
        ([{"type": "edit", "args": {"action": "write", "args": {"path": "b"}}}], ["wrote b"], "edit"),
        ([{"type": "response", "args": "No."}], [], "reject"),
        ([{"type": "ignore", "args": None}], [], "reject"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_the_answers_of_both_interfaces_are_decisions(answer: Any, ran: list[str], decided: str) -> None:
    desk = Desk(ONE, "Done.")
    await desk.session.run("go")

    await desk.graph.ainvoke(Command(resume=answer), thread())

    assert (desk.ran, [each["decision"] for each in await desk.decisions()]) == (ran, [decided])
