"""Models that give every call the same id: each result stays with its call."""

from __future__ import annotations

import asyncio

from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, echo
from tests.support.gates import Gate, gated_tool

DONE = ["No more actions.", "Done."]


async def test_results_of_repeated_call_ids_are_all_returned() -> None:
    model = ScriptedChatModel(
        [asks(("c", "echo", {"text": "one"})), asks(("c", "fail", {})), asks(("c", "echo", {"text": "three"})), *DONE]
    )

    @tool
    async def fail() -> str:
        """Fail."""
        raise ValueError("no")

    talk = Session(create_graph_agent(model, tools=[echo, fail], checkpointer=InMemorySaver()), "s1")

    result = await talk.run("go")

    assert (result.results, result.pending) == (
        {"c": "one", "c#2": {"error": "fail failed: ValueError: no"}, "c#3": "three"},
        [],
    )


async def test_a_call_without_a_result_is_pending_though_one_before_it_had_one() -> None:
    gate = Gate()
    model = ScriptedChatModel([asks(("c", "echo", {"text": "one"})), asks(("c", "work", {}))])
    talk = Session(create_graph_agent(model, tools=[echo, gated_tool(gate)], checkpointer=InMemorySaver()), "s1")
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    meanwhile, records = await talk.driver.result(), [(call.name, call.state) for call in await talk.calls()]
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)

    assert (meanwhile.results, meanwhile.pending, records) == (
        {"c": "one"},
        [{"id": "c#2", "plan_id": "c", "name": "work"}],
        [("echo", "finished"), ("work", "started")],
    )
