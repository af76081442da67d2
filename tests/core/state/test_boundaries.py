"""A run stopped at a superstep boundary has started nothing of the next superstep, and the resumed run relies on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.core.execution.ledger import STARTED, UNTOUCHED
from tests.support.agents import asks, dialogue, says, thread
from tests.support.result_texts import NOT_STARTED, UNKNOWN

WRITE = asks(("w", "write", {}))


def writer(ran: list[str]) -> BaseTool:
    @tool
    async def write() -> str:
        """Change something."""
        ran.append("write")
        return "written"

    return write


def reader() -> BaseTool:
    @tool
    async def look(text: str) -> str:
        """Look a text up."""
        return text

    look.metadata = {"effect": "read"}
    return look


def agent(script: list[str], ran: list[str]) -> Any:
    return create_graph_agent(ScriptedChatModel(script), tools=[writer(ran)], checkpointer=InMemorySaver())


class DrainedAfterPlanning(ScriptedChatModel):
    """Asks for the run to be drained as soon as it has planned."""

    control: Any

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        self.control.request_drain()
        return await super()._agenerate(*args, **kwargs)


async def test_a_drained_run_goes_on_with_the_calls_it_had_not_begun() -> None:
    ran: list[str] = []
    control = RunControl()
    model = DrainedAfterPlanning(responses=[WRITE, "No more actions.", "Done."], control=control)
    graph = create_graph_agent(model, tools=[writer(ran)], checkpointer=InMemorySaver())
    with pytest.raises(GraphDrained):
        await graph.ainvoke(says("go"), thread(), control=control)
    before = list(ran)

    result = await graph.ainvoke(None, thread())

    assert (before, ran, dialogue(result["messages"])[2:]) == ([], ["write"], [("tool", "written"), ("ai", "Done.")])


@pytest.mark.parametrize("blocking", [False, True], ids=["asynchronous", "blocking"])
async def test_a_breakpoint_before_the_tools_holds_them_back_and_no_more(blocking: bool) -> None:
    ran: list[str] = []
    graph = agent([WRITE, "No more actions.", "Done."], ran)
    run = _in_thread(graph.invoke) if blocking else graph.ainvoke
    await run(says("go"), thread(), interrupt_before=["tools"])
    before = list(ran)

    result = await run(None, thread())

    assert (before, ran, dialogue(result["messages"])[2:]) == ([], ["write"], [("tool", "written"), ("ai", "Done.")])


def _in_thread(function: Any) -> Any:
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(function, *args, **kwargs)

    return run


async def test_new_input_at_a_breakpoint_reports_calls_as_not_started() -> None:
    ran: list[str] = []
    graph = agent([WRITE, "No more actions.", "Fine."], ran)
    await graph.ainvoke(says("go"), thread(), interrupt_before=["tools"])

    result = await graph.ainvoke(says("no, leave it"), thread())

    assert (ran, dialogue(result["messages"])[2]) == ([], ("tool", NOT_STARTED))


@pytest.mark.parametrize("ledger", [False, True])
async def test_new_input_at_a_breakpoint_reports_reading_calls_as_not_started(ledger: bool) -> None:
    graph = create_graph_agent(
        ScriptedChatModel([asks(("1", "look", {"text": "a"})), "Fine."]),
        tools=[reader()],
        config=LoopConfig(effect_ledger=ledger),
        checkpointer=InMemorySaver(),
    )
    await graph.ainvoke(says("go"), thread(), interrupt_before=["tools"])

    result = await graph.ainvoke(says("no, leave it"), thread())

    events = await SessionMemory(graph).get_session_events(thread()["configurable"]["thread_id"])
    statuses = [event["status"] for event in events if event["type"] == "tool_result"]
    assert (statuses, dialogue(result["messages"])[2]) == (["skipped"], ("tool", NOT_STARTED))


async def test_a_call_begun_after_a_breakpoint_and_lost_is_not_begun_again() -> None:
    ran: list[str] = []
    begun = asyncio.Event()

    @tool
    async def write() -> str:
        """Change something, and never return."""
        ran.append("write")
        begun.set()
        await asyncio.Event().wait()
        return "unreachable"

    saver = InMemorySaver()
    graph = create_graph_agent(
        ScriptedChatModel([WRITE, "No more actions.", "Done."]), tools=[write], checkpointer=saver
    )
    await graph.ainvoke(says("go"), thread(), interrupt_before=["tools"])
    run = asyncio.create_task(graph.ainvoke(None, thread()))
    await begun.wait()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)

    result = await graph.ainvoke(None, thread())

    saved = [entry async for entry in saver.alist(thread())]
    notes = {
        channel for entry in saved for _, channel, _ in entry.pending_writes or [] if channel in (STARTED, UNTOUCHED)
    }
    assert (ran, dialogue(result["messages"])[2], notes) == (["write"], ("tool", UNKNOWN), {STARTED, UNTOUCHED})


async def test_a_plan_that_a_person_has_edited_is_run() -> None:
    ran: list[str] = []
    graph = agent([WRITE, "No more actions.", "Done."], ran)
    await graph.ainvoke(says("go"), thread(), interrupt_before=["tools"])
    plan = (await graph.aget_state(thread())).values["messages"][-1]
    edited = plan.model_copy(update={"content": "edited"})
    await graph.aupdate_state(thread(), {"messages": [edited]}, as_node="plan")

    result = await graph.ainvoke(None, thread())

    assert (ran, dialogue(result["messages"])[1:]) == (
        ["write"],
        [("ai", "edited"), ("tool", "written"), ("ai", "Done.")],
    )


async def test_going_back_to_a_plan_runs_it_again() -> None:
    ran: list[str] = []
    graph = agent([WRITE, "No more actions.", "Done.", "No more actions.", "Done again."], ran)
    await graph.ainvoke(says("go"), thread())
    planned = await anext(s async for s in graph.aget_state_history(thread()) if s.next == ("tools",))

    result = await graph.ainvoke(None, planned.config)

    assert (ran, result["messages"][-1].text) == (["write", "write"], "Done again.")


async def test_a_delegates_calls_are_drained_too() -> None:
    ran: list[str] = []
    control = RunControl()
    inner_model = DrainedAfterPlanning(responses=[WRITE, "No more actions.", "Written."], control=control)
    inner = create_graph_agent(inner_model, tools=[writer(ran)])
    outer = create_graph_agent(
        ScriptedChatModel([asks(("d", "delegate_to_scribe", {"task": "write"})), "No more actions.", "Done."]),
        delegates=[GraphDelegate("scribe", "Writes.", inner)],
        checkpointer=InMemorySaver(),
    )
    with pytest.raises(GraphDrained):
        await outer.ainvoke(says("go"), thread(), control=control)
    before = list(ran)

    result = await outer.ainvoke(None, thread())

    assert (before, ran, dialogue(result["messages"])[2:]) == ([], ["write"], [("tool", "Written."), ("ai", "Done.")])
