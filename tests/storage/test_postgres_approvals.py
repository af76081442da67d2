"""Approvals in PostgreSQL: of an agent and of its delegate, answered over another connection."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command
from typing_extensions import TypedDict

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve, reject
from graph_agent.persistence import open_saver
from tests.support.agents import asks
from tests.support.postgres_server import on_postgres

pytestmark = on_postgres


class Shop(TypedDict):
    basket: Annotated[list[str], operator.add]


@tool
def pay(amount: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Pay."""
    return Command(update={"basket": [f"paid {amount}"], "messages": [ToolMessage("paid", tool_call_id=tool_call_id)]})


@tool
def spend(amount: int) -> str:
    """Spend."""
    return f"spent {amount}"


def agent(script: list[str], inner: list[str], saver: Any) -> Any:
    bank = create_graph_agent(ScriptedChatModel(inner), tools=[spend], config=LoopConfig(approve=["spend"]))
    return create_graph_agent(
        ScriptedChatModel(script),
        tools=[pay],
        delegates=[GraphDelegate("bank", "Pays.", bank)],
        state_schema=Shop,
        config=LoopConfig(approve=["pay"]),
        checkpointer=saver,
    )


async def test_requests_of_an_agent_and_its_delegate_outlive_their_process(postgres_url: str) -> None:
    wave = asks(("a", "pay", {"amount": 5}), ("d", "delegate_to_bank", {"task": "Spend."}))
    async with open_saver(postgres_url) as saver:
        graph = agent([wave], [asks(("s", "spend", {"amount": 7}))], saver)
        first = await Session(graph, "s1").run("go", state={"basket": ["tea"]})
    async with open_saver(postgres_url) as saver:
        answers = {first.interrupts[0].id: approve()}
        second = await Session(agent([], ["Spent."], saver), "s1").resume(answers, decided_by="ana")
    async with open_saver(postgres_url) as saver:
        session = Session(agent(["Done."], [], saver), "s1")
        third = await session.resume(approve(), decided_by="bob")
        events = await session.events()

    questions = [one.value["call_ids"] for result in (first, second) for one in result.interrupts]
    decided = [
        (event["id"], event.get("delegate"), event["decided_by"])
        for event in events
        if event["type"] == "approval_decision"
    ]
    assert (questions, third.results, third.state, decided) == (
        [["s"], ["a"], ["a"]],
        {"a": "paid", "d": "Spent."},
        {"basket": ["tea", "paid 5"]},
        [("a", None, "bob"), ("s", "bank", "ana")],
    )


async def test_a_rejection_of_a_delegates_call_is_stored(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver:
        script = [asks(("d", "delegate_to_bank", {"task": "Spend."})), "Done."]
        session = Session(agent(script, [asks(("s", "spend", {"amount": 7})), "Refused."], saver), "s2")
        await session.run("go")
        result = await session.resume(reject("No."), decided_by="ana")

    assert (result.results, result.answer) == ({"d": "Refused."}, "Done.")
