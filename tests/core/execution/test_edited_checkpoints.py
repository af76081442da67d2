"""Edits, copies and replays of a checkpoint whose wave has not ended: started calls stay started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import asks, marked, says
from tests.support.gates import Gate
from tests.support.result_texts import NOT_STARTED, UNKNOWN
from tests.support.sessions import wait_for_results

DONE = ["No more actions.", "Done."]
TASK = {"task": "write"}


COPIES = ["one", "two", "of a copy"]


class Stopped:
    """A session that was cancelled after one call had finished, while another waited at a gate."""

    def __init__(self, *, ledger: bool = False, saver: BaseCheckpointSaver[Any] | None = None, **marks: Any) -> None:
        """`marks` are the gated tool's."""
        self.ran: list[str] = []
        self.gate = Gate()
        wave = asks(("1", "write", {"text": "one"}), ("2", "hold", {"text": "two"}), ("3", "delegate_to_d", TASK))
        self.graph = create_graph_agent(
            ScriptedChatModel([wave, *DONE, *DONE]),
            tools=[self._write(), marked(self._hold(), **marks)],
            delegates=[GraphDelegate("d", "Writes.", self._delegate())],
            checkpointer=saver or InMemorySaver(),
            config=LoopConfig(effect_ledger=ledger),
        )
        self.talk = Session(self.graph, "s1")
        self.config: Any = {"configurable": {"thread_id": "s1"}}

    def _write(self) -> BaseTool:
        @tool
        async def write(text: str) -> str:
            """Change something."""
            self.ran.append(text)
            return f"wrote {text}"

        return write

    def _hold(self) -> BaseTool:
        @tool
        async def hold(text: str) -> str:
            """Change something, and take long."""
            self.ran.append(text)
            await self.gate.passing()
            return f"held {text}"

        return hold

    def _delegate(self) -> Any:
        script = [asks(("w", "write", {"text": "delegated"})), "No more actions.", "Written."]
        return create_graph_agent(ScriptedChatModel(script * 2), tools=[self._write()])

    async def stop(self) -> None:
        run = asyncio.create_task(self.talk.run("go"))
        await self.gate.reached()
        await wait_for_results(self.talk, 2)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        self.gate.open()

    async def copy(self, config: Any = None) -> Any:
        """Copy the newest checkpoint, or the given one, as LangGraph Studio does."""
        return await self.graph.aupdate_state(config or self.config, None, as_node="__copy__")

    async def make(self, copies: str) -> None:
        """Make a copy of the newest checkpoint, two of it, or a copy of its copy."""
        newest = (await self.graph.aget_state(self.config)).config
        await self.copy(newest)
        if copies != "one":
            await self.copy(newest if copies == "two" else None)

    async def planned(self) -> Any:
        """Return the config of the newest checkpoint with a wave."""
        history = self.graph.aget_state_history(self.config)
        return (await anext(state async for state in history if "tools" in state.next)).config

    async def results_after_new_input(self) -> list[Any]:
        """Send new input, and return all results of the conversation."""
        state = await self.graph.ainvoke(says("more"), self.config)
        return [message.content for message in state["messages"] if message.type == "tool"]

    async def edit(self, **changes: Any) -> None:
        """Change the plan's message; by default its text."""
        await edit_plan(self.graph, self.config, **changes)


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    if request.param == "memory":
        yield InMemorySaver()
        return
    async with open_saver(f"sqlite:///{tmp_path / 'sessions.db'}") as opened:
        yield opened


async def edit_plan(graph: Any, config: Any, **changes: Any) -> Any:
    messages = (await graph.aget_state(config)).values["messages"]
    plan = next(message for message in reversed(messages) if message.type == "ai")
    edited = plan.model_copy(update=changes or {"content": "A note."})
    return await graph.aupdate_state(config, {"messages": [edited]}, as_node="plan")


@pytest.mark.parametrize("ledger", [False, True], ids=["no ledger", "ledger"])
@pytest.mark.parametrize("edits", [1, 2])
async def test_an_edit_runs_nothing_twice(edits: int, ledger: bool) -> None:
    stopped = Stopped(ledger=ledger)
    await stopped.stop()
    for _ in range(edits):
        await stopped.edit()
    before = [record.state for record in await stopped.talk.calls()]

    result = await stopped.talk.resume()

    assert (sorted(stopped.ran), before, result.results, result.usage["model_calls"]) == (
        ["delegated", "one", "two"],
        ["finished", "started" if ledger else "unknown", "finished"],
        {"1": "wrote one", "2": {"error": UNKNOWN}, "3": "Written."},
        6,
    )


async def test_a_call_that_can_be_repeated_is_run_again_after_an_edit() -> None:
    stopped = Stopped(idempotent=True)
    await stopped.stop()
    await stopped.edit()

    result = await stopped.talk.resume()

    assert (sorted(stopped.ran), result.results["2"]) == (["delegated", "one", "two", "two"], "held two")


@pytest.mark.parametrize("ledger", [False, True], ids=["no ledger", "ledger"])
async def test_an_edit_of_possibly_started_calls_does_not_run_them(ledger: bool) -> None:
    stopped = Stopped(ledger=ledger)
    await stopped.stop()
    other = {"text": "other"}
    calls: list[Any] = [{"id": "1", "name": "write", "args": other}, {"id": "2", "name": "hold", "args": other}]
    await stopped.edit(tool_calls=calls)

    result = await stopped.talk.resume()

    assert (sorted(stopped.ran), result.results) == (
        ["delegated", "one", "two"],
        {"1": {"error": UNKNOWN}, "2": {"error": UNKNOWN}, "3": "Written."},
    )


@pytest.mark.parametrize("ledger", [False, True], ids=["no ledger", "ledger"])
async def test_new_input_after_an_edit_settles_every_call_truthfully(ledger: bool) -> None:
    stopped = Stopped(ledger=ledger)
    await stopped.stop()
    await stopped.edit()

    await stopped.talk.run("never mind")

    results = [
        (event["status"], event["content"])
        for event in await stopped.talk.events()
        if event["type"] == "tool_result" or event["type"] == "delegation_response"
    ]
    assert (sorted(stopped.ran), results) == (
        ["delegated", "one", "two"],
        [("success", "wrote one"), ("unknown", UNKNOWN), ("success", "Written.")],
    )


async def test_an_edit_of_an_older_checkpoint_repeats_its_calls() -> None:
    stopped = Stopped()
    stopped.gate.open()
    await stopped.talk.run("go")
    edited = await edit_plan(stopped.graph, await stopped.planned())

    await stopped.graph.ainvoke(None, edited)

    assert sorted(stopped.ran) == ["delegated", "delegated", "one", "one", "two", "two"]


async def test_a_call_that_asked_a_person_asks_again_after_an_edit() -> None:
    ran: list[str] = []

    @tool
    async def ask() -> str:
        """Ask a person, and return the answer."""
        ran.append(interrupt("May I?"))
        return "done"

    model = ScriptedChatModel([asks(("1", "ask", {})), *DONE])
    graph: Any = create_graph_agent(model, tools=[ask], checkpointer=InMemorySaver())
    talk = Session(graph, "s1")
    await talk.run("go")
    await edit_plan(graph, {"configurable": {"thread_id": "s1"}})

    asked = await talk.resume()
    result = await talk.resume("yes")

    assert ([question.value for question in asked.interrupts], ran, result.results) == (
        ["May I?"],
        ["yes"],
        {"1": "done"},
    )


async def test_an_edit_does_not_start_calls_held_by_a_breakpoint() -> None:
    stopped = Stopped()
    await stopped.graph.ainvoke({"messages": [("user", "go")]}, stopped.config, interrupt_before=["tools", "delegate"])
    await stopped.edit()

    await stopped.talk.run("never mind")

    results = [event["content"] for event in await stopped.talk.events() if event["type"] == "tool_result"]
    assert (stopped.ran, results) == ([], [NOT_STARTED] * 2)


async def test_a_call_that_asked_and_was_edited_is_begun_once() -> None:
    ran: list[str] = []
    gate = Gate()

    @tool
    async def ask(text: str) -> str:
        """Ask a person about the first text only."""
        if text == "one":
            interrupt("May I?")
        ran.append(text)
        await gate.passing()
        return f"did {text}"

    model = ScriptedChatModel([asks(("1", "ask", {"text": "one"})), *DONE])
    graph: Any = create_graph_agent(model, tools=[ask], checkpointer=InMemorySaver())
    talk = Session(graph, "s1")
    await talk.run("go")
    calls: list[Any] = [{"id": "1", "name": "ask", "args": {"text": "other"}}]
    await edit_plan(graph, {"configurable": {"thread_id": "s1"}}, tool_calls=calls)
    run = asyncio.create_task(talk.resume())
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    gate.open()

    result = await talk.resume()

    assert (ran, result.results) == (["other"], {"1": {"error": UNKNOWN}})


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_copy_of_an_input_without_a_plan_keeps_the_results_before_it(copies: int) -> None:
    stopped = Stopped()
    await stopped.stop()
    await stopped.graph.ainvoke(says("more"), stopped.config, interrupt_before=["plan"])
    for _ in range(copies):
        await stopped.graph.aupdate_state(stopped.config, None, as_node="__copy__")
    state = await stopped.graph.ainvoke(None, stopped.config)

    results = [message.content for message in state["messages"] if message.type == "tool"]
    assert results == ["wrote one", UNKNOWN, "Written."]


@pytest.mark.parametrize("ledger", [False, True], ids=["no ledger", "ledger"])
@pytest.mark.parametrize("copies", COPIES)
async def test_new_input_after_a_copy_settles_every_call_truthfully(
    copies: str, ledger: bool, saver: BaseCheckpointSaver[Any]
) -> None:
    stopped = Stopped(ledger=ledger, saver=saver)
    await stopped.stop()
    await stopped.make(copies)

    results = await stopped.results_after_new_input()

    assert (sorted(stopped.ran), results) == (["delegated", "one", "two"], ["wrote one", UNKNOWN, "Written."])


@pytest.mark.parametrize("copies", COPIES)
async def test_a_resumed_copy_runs_nothing_twice(copies: str, saver: BaseCheckpointSaver[Any]) -> None:
    stopped = Stopped(saver=saver)
    await stopped.stop()
    await stopped.make(copies)

    result = await stopped.talk.resume()

    assert (sorted(stopped.ran), result.results) == (
        ["delegated", "one", "two"],
        {"1": "wrote one", "2": {"error": UNKNOWN}, "3": "Written."},
    )


async def test_an_edit_of_a_copy_runs_nothing_twice(saver: BaseCheckpointSaver[Any]) -> None:
    stopped = Stopped(saver=saver)
    await stopped.stop()
    await stopped.copy()
    await stopped.edit()

    result = await stopped.talk.resume()

    assert (sorted(stopped.ran), result.results) == (
        ["delegated", "one", "two"],
        {"1": "wrote one", "2": {"error": UNKNOWN}, "3": "Written."},
    )


async def test_a_copy_of_calls_held_by_a_breakpoint_runs_them(saver: BaseCheckpointSaver[Any]) -> None:
    stopped = Stopped(saver=saver)
    stopped.gate.open()
    await stopped.graph.ainvoke(says("go"), stopped.config, interrupt_before=["tools", "delegate"])
    await stopped.copy()

    await stopped.talk.resume()

    assert sorted(stopped.ran) == ["delegated", "one", "two"]


@pytest.mark.parametrize("copies", COPIES)
async def test_new_input_after_a_copy_of_calls_held_by_a_breakpoint_reports_that_none_ran(
    copies: str, saver: BaseCheckpointSaver[Any]
) -> None:
    stopped = Stopped(saver=saver)
    await stopped.graph.ainvoke(says("go"), stopped.config, interrupt_before=["tools", "delegate"])
    await stopped.make(copies)

    results = await stopped.results_after_new_input()

    assert (stopped.ran, results) == ([], [NOT_STARTED] * 3)


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_copy_of_an_older_checkpoint_repeats_its_calls(copies: int, saver: BaseCheckpointSaver[Any]) -> None:
    stopped = Stopped(saver=saver)
    stopped.gate.open()
    await stopped.talk.run("go")
    older = await stopped.planned()
    copied = [await stopped.copy(older) for _ in range(copies)][-1]

    await stopped.graph.ainvoke(None, copied)

    assert sorted(stopped.ran) == ["delegated", "delegated", "one", "one", "two", "two"]


@pytest.mark.parametrize("ledger", [False, True], ids=["no ledger", "ledger"])
@pytest.mark.parametrize("way", ["copy", "edit"])
async def test_new_input_after_a_return_to_an_older_wave_reports_calls_that_may_have_run(
    way: str, ledger: bool, saver: BaseCheckpointSaver[Any]
) -> None:
    stopped = Stopped(ledger=ledger, saver=saver)
    stopped.gate.open()
    await stopped.talk.run("go")
    older = await stopped.planned()
    if way == "copy":
        await stopped.copy(older)
    else:
        await edit_plan(stopped.graph, older)

    results = await stopped.results_after_new_input()

    assert (sorted(stopped.ran), results) == (["delegated", "one", "two"], [UNKNOWN] * 3)
