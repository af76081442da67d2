"""Approvals of LangChain's `HumanInTheLoopMiddleware`: their events, and answers that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolCallLimitMiddleware, hook_config
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import ValidationError

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve, edit, reject
from graph_agent.errors import DecisionError
from tests.support.agents import asks, thread
from tests.support.approvals import ALL
from tests.support.result_texts import UNDECIDED

TWO = asks(("a", "pay", {"amount": 5}), ("b", "pay", {"amount": 6}))
READ_ON = {"ts", "seq", "session_id", "step", "waited_s"}


class Bank:
    """A session of an agent whose tool `pay` the middleware asks about; `ran` has the payments."""

    def __init__(self, *script: str, mode: Any = "batched", ledger: bool = False) -> None:
        self.ran: list[int] = []

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            self.ran.append(amount)
            return "paid"

        self.graph = create_graph_agent(
            ScriptedChatModel(list(script)),
            tools=[pay],
            hooks=[HumanInTheLoopMiddleware(interrupt_on={"pay": True}, interrupt_mode=mode)],
            config=LoopConfig(effect_ledger=ledger),
            checkpointer=InMemorySaver(),
        )
        self.session = Session(self.graph, "s1")

    async def approvals(self) -> list[dict[str, Any]]:
        """The approval events, without the fields of every event."""
        events = [event for event in await self.session.events() if event["type"].startswith("approval")]
        return [{key: value for key, value in event.items() if key not in READ_ON} for event in events]


def requested(*calls: tuple[str, int]) -> dict[str, Any]:
    held = [
        {
            "id": id_,
            "name": "pay",
            "arguments": {"amount": amount},
            "allowed_decisions": ALL,
            "description": f"Tool execution requires approval\n\nTool: pay\nArgs: {{'amount': {amount}}}",
        }
        for id_, amount in calls
    ]
    return {"type": "approval_request", "calls": held, "middleware": "HumanInTheLoopMiddleware"}


def decided(id_: str, decision: str, **fields: Any) -> dict[str, Any]:
    made = {"type": "approval_decision", "id": id_, "name": "pay", "decision": decision, **fields}
    return {**made, "decided_by": "ana", "middleware": "HumanInTheLoopMiddleware"}


async def test_the_history_has_the_calls_and_the_person_of_each_decision() -> None:
    bank = Bank(TWO, "Done.")

    waiting = await bank.session.run("go")
    await bank.session.resume([edit({"amount": 7}), reject("Enough.")], decided_by="ana")

    assert (waiting.waiting, bank.ran, await bank.approvals()) == (
        "approval",
        [7],
        [
            requested(("a", 5), ("b", 6)),
            decided("a", "edit", arguments={"amount": 7}),
            decided("b", "reject", message="Enough."),
        ],
    )


async def test_a_question_for_each_call_is_an_approval_with_events() -> None:
    bank = Bank(TWO, "Done.", mode="per_call")

    waiting = await bank.session.run("go")
    first, second = waiting.interrupts
    with pytest.raises(DecisionError, match="'many' is not of type 'integer'"):
        await bank.session.resume({first.id: edit({"amount": "many"}), second.id: approve()})
    await bank.session.resume({first.id: approve(), second.id: "reject: enough"}, decided_by="ana")

    assert (waiting.waiting, bank.ran, await bank.approvals()) == (
        "approval",
        [5],
        [requested(("a", 5)), decided("a", "approve"), requested(("b", 6)), decided("b", "reject", message="enough")],
    )


@pytest.mark.parametrize("ledger", [False, True])
async def test_a_call_runs_once_it_is_approved_after_an_answer_that_was_refused(ledger: bool) -> None:
    bank = Bank(asks(("a", "pay", {"amount": 5})), "Done.", mode="per_call", ledger=ledger)

    waiting = await bank.session.run("go")
    for _ in range(2):
        with pytest.raises(ValidationError):
            await bank.graph.ainvoke(Command(resume={waiting.interrupts[0].id: {"type": "maybe"}}), thread())
    result = await bank.session.resume(approve())

    assert (bank.ran, result.results) == ([5], {"a": "paid"})


@pytest.mark.parametrize("refused", [False, True])
async def test_new_input_settles_a_call_without_a_decision_as_not_run(refused: bool) -> None:
    bank = Bank(asks(("a", "pay", {"amount": 5})), "Never mind.", mode="per_call")

    waiting = await bank.session.run("go")
    if refused:
        with pytest.raises(ValidationError):
            await bank.graph.ainvoke(Command(resume={waiting.interrupts[0].id: {"type": "maybe"}}), thread())
    await bank.session.run("stop")

    results = [(e["status"], e["content"]) for e in await bank.session.events() if e["type"] == "tool_result"]
    assert (bank.ran, results) == ([], [("skipped", UNDECIDED)])


class JumpToTools(AgentMiddleware):
    @hook_config(can_jump_to=["tools"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        newest = state["messages"][-1]
        return {"jump_to": "tools"} if newest.type == "tool" or newest.tool_calls else None


async def test_a_rejected_call_does_not_run_by_a_jump_to_the_tools() -> None:
    """See https://github.com/langchain-ai/langchain/issues/40491 and https://github.com/langchain-ai/langchain/issues/37093."""
    ran: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    asking = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    # `after_model` hooks run from the last to the first.
    hooks = [JumpToTools(), asking]
    model = ScriptedChatModel([TWO, "No more actions.", "Done."])
    session = Session(create_graph_agent(model, tools=[pay], hooks=hooks, checkpointer=InMemorySaver()), "s1")
    await session.run("go")

    result = await session.resume([reject("Too much."), approve()])

    assert (ran, list(result.results), "error" in result.results["a"]) == ([6], ["a", "b"], True)


async def test_the_calls_of_one_tool_are_limited_and_those_of_others_are_not() -> None:
    """See https://github.com/pydantic/pydantic-ai/issues/3352."""
    ran: list[str] = []

    @tool
    def fetch(page: int) -> str:
        """Fetch."""
        ran.append(f"fetch {page}")
        return "fetched"

    @tool
    def find(word: str) -> str:
        """Find."""
        ran.append(f"find {word}")
        return "found"

    script = [
        asks(("a", "fetch", {"page": 1}), ("b", "fetch", {"page": 2}), ("c", "find", {"word": "x"})),
        asks(("d", "fetch", {"page": 3}), ("e", "find", {"word": "y"})),
        "No more actions.",
        "Done.",
        asks(("f", "fetch", {"page": 4})),
        "No more actions.",
        "Done.",
    ]
    graph = create_graph_agent(
        ScriptedChatModel(script),
        tools=[fetch, find],
        hooks=[ToolCallLimitMiddleware(tool_name="fetch", run_limit=1)],
        checkpointer=InMemorySaver(),
    )
    session = Session(graph, "s1")

    first = await session.run("go")
    second = await session.run("again")

    refused = {id_: "error" in first.results[id_] for id_ in "bd"}
    assert (sorted(ran), refused, first.answer, second.results) == (
        ["fetch 1", "fetch 4", "find x", "find y"],
        {"b": True, "d": True},
        "Done.",
        {"f": "fetched"},
    )
