"""Calls that begin while the plan that makes them is still streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.types import interrupt
from pydantic import PrivateAttr

from graph_agent import LoopConfig, LoopHook, ScriptedChatModel, create_graph_agent
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.session.early_work import early_work_of
from tests.support.early_calls import SlowModel, agent_of, calls, found, read


def plan(*names: str) -> str:
    made = [{"id": f"c{at}", "tool": name, "args": {"text": "a"}, "needs": []} for at, name in enumerate(names)]
    return json.dumps({"status": "continue", "action": "Look.", "tools": made, "reasoning": "So."})


def in_text(*names: str) -> str:
    made = [f'<tool_call>{{"name": "{name}", "arguments": {{"text": "a"}}}}</tool_call>' for name in names]
    return "I look.\n" + "\n".join(made)


@pytest.mark.parametrize(("mode", "reply"), [("native", calls), ("wave", plan), ("text", in_text)])
async def test_a_complete_reading_call_runs_while_the_plan_is_streamed_and_a_writing_one_waits(
    mode: str, reply: Callable[..., str]
) -> None:
    began: list[str] = []
    made = reply("look", "save")
    model = SlowModel(responses=[made, "Done."], streaming=True)

    @tool
    async def look(text: str) -> str:
        """Look up."""
        began.append("look")
        model.may_end.set()
        return f"found {text}"

    look.metadata = {"effect": "read"}

    @tool
    async def save(text: str) -> str:
        """Save."""
        began.append("save" if model.may_end.is_set() else "save too early")
        return "saved"

    session = agent_of(model, [look, save], tool_calling=mode).session("s1")
    result = await session.run("Look it up.")
    events = await session.events()

    counts = [event["early"] for event in events if "early" in event]
    early = {event["name"]: "early_s" in event for event in events if event["type"] == "tool_result"}
    assert (began, result.answer, early) == (["look", "save"], "Done.", {"look": True, "save": False})
    assert counts == [{"streamed": {"started": 1}}, {"streamed": {"used": 1}}]
    assert [*result.results.values()] == ["found a", "saved"]


async def fields_of_plan(dispatch: Any) -> list[list[str]]:
    """The fields of a plan, in the order of the prompt and in that of its schema."""
    model = ScriptedChatModel([plan("look"), "Done."])
    config = LoopConfig(dispatch=dispatch, tool_calling="wave", planner="dag")
    await create_graph_agent(model, [read("look", found)], config=config).run("Look it up.")
    request = model.requests[0]
    described = request.messages[0].text.partition("nothing else:\n")[2].partition("\nThe calls")[0]
    schema = request.tools[0]["function"]["parameters"]
    own = ["tools", "status", "action", "slots", "reasoning"]
    return [sorted(own, key=lambda name: described.index(f'"{name}"')), [*schema["properties"]][:5]]


async def test_only_a_streamed_plan_is_asked_for_with_its_calls_first() -> None:
    rest = ["status", "action", "slots"]

    assert await fields_of_plan("streamed") == [["tools", *rest, "reasoning"]] * 2
    assert await fields_of_plan("whole") == [[*rest, "tools", "reasoning"]] * 2


class CutOffOnce(ScriptedChatModel):
    """Breaks its first stream off before the last chunk."""

    _is_first: bool = PrivateAttr(default=True)

    async def _astream(self, *given: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        chunks = [chunk async for chunk in super()._astream(*given, **kwargs)]
        is_first, self._is_first = self._is_first, False
        for chunk in chunks[: -1 if is_first else None]:
            yield chunk
            await asyncio.sleep(0)
        if is_first:
            raise ConnectionError("the connection broke")


async def test_a_result_of_a_broken_stream_serves_the_plan_of_the_next_attempt_and_others_are_dropped() -> None:
    ran: list[str] = []

    async def work(text: str) -> str:
        ran.append(text)
        return f"found {text}"

    made = [{"id": f"c{at}", "name": "look", "arguments": {"text": text}} for at, text in enumerate(["a", "b", "c"])]
    first, second = json.dumps({"tool_calls": made}), json.dumps({"tool_calls": [made[1]]})
    model = CutOffOnce(responses=[first, second, "Done."], streaming=True)
    session = agent_of(model, [read("look", work)], model_retries=1).session("s1")
    result = await session.run("Look it up.")
    early = early_work_of(await session.events())

    assert ([*result.results.values()], ran.count("b"), early.used) == (["found b"], 1, 1)
    assert early.started > early.used


@pytest.mark.parametrize("approve", [["look"], ["l*"], [lambda call: None]], ids=["name", "pattern", "function"])
async def test_no_call_begins_early_that_a_rule_for_approvals_may_select(approve: list[Any]) -> None:
    model = ScriptedChatModel([calls("look"), "Done."], streaming=True)
    session = agent_of(model, [read("look", found)], approve=approve).session("s1")
    await session.run("Look it up.")

    assert not any("early" in event for event in await session.events())


@pytest.mark.parametrize(("origins", "is_early"), [(False, True), (True, False)])
async def test_no_call_with_a_sink_begins_early_if_origins_are_traced(*, origins: bool, is_early: bool) -> None:
    model = ScriptedChatModel([calls("look"), "Done."], streaming=True)
    look = read("look", found)
    look.metadata = {"effect": "read", "sinks": ["text"]}
    session = agent_of(model, [look], origins=origins).session("s1")
    await session.run("Look a up.")

    assert any("early" in event for event in await session.events()) == is_early


async def test_no_call_begins_early_if_a_hook_sees_the_plan() -> None:
    class Sees(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            return False, None

    model = ScriptedChatModel([calls("look"), "Done."], streaming=True)
    config = LoopConfig(dispatch="streamed")
    agent = create_graph_agent(
        model, [read("look", found)], hooks=[Sees()], config=config, checkpointer=InMemorySaver()
    )
    session = agent.session("s1")
    result = await session.run("Look it up.")

    assert (result.answer, [*result.results.values()]) == ("Done.", ["found a"])
    assert not any("early" in event for event in await session.events())


async def test_a_call_that_fails_early_runs_once_more_as_a_call_of_the_plan() -> None:
    attempts: list[str] = []

    async def work(text: str) -> str:
        attempts.append(text)
        if len(attempts) == 1:
            raise OSError("not yet")
        return "found"

    model = ScriptedChatModel([calls("look"), "Done."], streaming=True)
    result = await agent_of(model, [read("look", work)]).session("s1").run("Look it up.")

    assert ([*result.results.values()], len(attempts)) == (["found"], 2)


async def test_retries_count_the_early_call_that_failed_only_once() -> None:
    attempts: list[str] = []

    async def work(text: str) -> str:
        attempts.append(text)
        if len(attempts) < 4:
            raise OSError("not yet")
        return "found"

    look = read("look", work)
    look.metadata = {"effect": "read", "retry": {"max_attempts": 3, "initial_interval": 0.001}}
    session = agent_of(ScriptedChatModel([calls("look"), "Done."], streaming=True), [look]).session("s1")
    result = await session.run("Look it up.")
    early = [event["early"]["streamed"] for event in await session.events() if "early" in event]

    assert ([*result.results.values()], len(attempts)) == (["found"], 4)
    assert [(each.get("started"), each.get("dropped")) for each in early] == [(1, None), (None, 1)]


async def test_a_reading_tool_that_asks_a_person_asks_once_and_after_the_plan() -> None:
    async def work(text: str) -> str:
        return f"found {interrupt('Which one?')}"

    model = ScriptedChatModel([calls("look"), "Done."], streaming=True)
    session = agent_of(model, [read("look", work)]).session("s1")
    asked = await session.run("Look it up.")
    result = await session.resume("this one")

    assert ([each.value for each in asked.interrupts], [*result.results.values()]) == (
        ["Which one?"],
        ["found this one"],
    )


async def test_what_an_early_call_writes_to_the_stream_arrives_once() -> None:
    async def work(text: str) -> str:
        get_stream_writer()(f"looking for {text}")
        return "found"

    model = ScriptedChatModel([calls("look"), "Done."], streaming=True)
    agent = agent_of(model, [read("look", work)])
    config: Any = {"configurable": {"thread_id": "t1"}}
    written = [part async for part in agent.astream({"messages": [("user", "Look.")]}, config, stream_mode="custom")]

    assert [part for part in written if part == "looking for a"] == ["looking for a"]


async def test_an_abort_during_the_plan_ends_the_calls_that_have_begun() -> None:
    ended = asyncio.Event()
    model = SlowModel(responses=[calls("look"), "Done."], streaming=True)
    session = agent_of(model, [read("look", found)]).session("s1")

    async def work(text: str) -> str:
        await session.abort()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    session = agent_of(model, [read("look", work)]).session("s1")
    result = await session.run("Look it up.")

    assert (result.stop_reason, ended.is_set(), [*result.results]) == ("aborted", True, [])


class CountsStreams(ScriptedChatModel):
    """Counts the replies that it streams."""

    streams: int = 0

    async def _astream(self, *given: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        self.streams += 1
        async for chunk in super()._astream(*given, **kwargs):
            yield chunk


@pytest.mark.parametrize("disabled", [True, False])
async def test_plans_of_a_model_whose_streaming_is_disabled_are_not_streamed(disabled: bool) -> None:
    model = CountsStreams(responses=[plan("look"), "Done."], disable_streaming=disabled)
    session = agent_of(model, [read("look", found)], tool_calling="wave").session("s1")

    await session.run("Look it up.")

    assert (model.streams == 0) is disabled
