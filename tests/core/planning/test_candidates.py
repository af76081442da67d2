"""Plans that are chosen from several requests for the same step."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from graph_agent import GraphAgent, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.testing import replay


async def look(text: str) -> str:
    """Look up."""
    return f"found {text}"


async def skip(text: str) -> str:
    """Skip."""
    return "skipped"


def calls(*pairs: tuple[str, str], tokens: int = 10, id_: str = "c") -> AIMessage:
    made: Any = [{"id": f"{id_}{at}", "name": name, "args": {"text": text}} for at, (name, text) in enumerate(pairs)]
    used: Any = {"input_tokens": 100, "output_tokens": tokens, "total_tokens": 100 + tokens}
    return AIMessage("", tool_calls=made, usage_metadata=used)


def plan(*pairs: tuple[str, str], id_: str = "c") -> str:
    made = [{"id": f"{id_}{at}", "tool": name, "args": {"text": text}} for at, (name, text) in enumerate(pairs)]
    return json.dumps({"status": "continue", "tools": made})


def agent_of(model: ScriptedChatModel, **config: Any) -> GraphAgent[Any, Any]:
    settings = LoopConfig(**{"candidates": 3, **config})
    return create_graph_agent(model, [look, skip], config=settings, checkpointer=InMemorySaver())


@pytest.mark.parametrize("mode", ["native", "wave"])
async def test_the_plan_that_most_candidates_have_is_taken_in_any_order_of_its_calls(mode: str) -> None:
    wanted = [("look", "a"), ("look", "b")]
    made = plan if mode == "wave" else calls
    script = [made(("skip", "a"), id_="x"), made(*wanted, id_="y"), made(*reversed(wanted), id_="z")]
    answers = ['{"status": "done", "tools": []}'] * 3 if mode == "wave" else ["Done."] * 3
    session = agent_of(ScriptedChatModel([*script, *answers, "Done."]), tool_calling=mode).session("s1")
    result = await session.run("Look them up.")
    [planned, *_] = [event for event in await session.events() if event["type"] == "plan"]

    assert sorted(map(str, result.results.values())) == ["found a", "found b"]
    assert [each["status"] for each in planned["candidates"]] == ["dropped", "chosen", "dropped"]


async def test_all_candidates_are_counted_and_the_cheapest_may_be_taken() -> None:
    script = [calls(("look", "a"), tokens=30), calls(("look", "a"), tokens=20), calls(("skip", "a"), tokens=10)]
    session = agent_of(ScriptedChatModel([*script, *["Done."] * 3]), choose="cheapest").session("s1")
    result = await session.run("Look it up.")
    events = await session.events()
    [first, *_] = [event for event in events if event["type"] == "plan"]

    assert [*result.results.values()] == ["skipped"]
    assert [each["output_tokens"] for each in first["model_calls"]] == [30, 20, 10]
    assert result.usage["model_calls"] == 6


class Failing(ScriptedChatModel):
    """Fails the given requests, counted from 0."""

    _fails: set[int] = PrivateAttr(default_factory=set)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        number = len(self.requests)
        reply = await super()._agenerate(messages, stop, run_manager, **kwargs)
        if number in self._fails:
            raise ValueError("an invalid request")
        return reply


async def test_a_candidate_that_fails_drops_out_and_the_input_fails_only_with_all_of_them() -> None:
    script = [calls(("skip", "a")), calls(("look", "a")), calls(("look", "a"))]
    some = Failing(responses=[*script, *["Done."] * 3])
    some._fails = {1}
    session = agent_of(some).session("s1")
    result = await session.run("Look it up.")
    [planned, *_] = [event for event in await session.events() if event["type"] == "plan"]
    every = Failing(responses=script)
    every._fails = {0, 1, 2}
    failed = await agent_of(every).session("s1").run("Look it up.")

    assert ([*result.results.values()], failed.status.value) == (["skipped"], "FAILED")
    assert [each["status"] for each in planned["candidates"]] == ["chosen", "failed", "dropped"]


class Late(ScriptedChatModel):
    """Never answers its third request."""

    async def _agenerate(self, *given: Any, **kwargs: Any) -> ChatResult:
        if len(self.requests) == 2:
            await asyncio.Event().wait()
        return await super()._agenerate(*given, **kwargs)


async def test_a_late_candidate_is_cancelled_once_the_choice_is_certain() -> None:
    session = agent_of(Late(responses=[calls(("look", "a")), calls(("look", "a")), "Done."])).session("s1")
    result = await session.run("Look it up.", context={"deadline_s": 20})
    [planned, *_] = [event for event in await session.events() if event["type"] == "plan"]

    assert [*result.results.values()] == ["found a"]
    assert [each["status"] for each in planned["candidates"]] == ["chosen", "dropped", "cancelled"]


async def test_a_replay_asks_once_for_the_plan_that_was_chosen() -> None:
    script = [calls(("skip", "a")), calls(("look", "a")), calls(("look", "a"))]
    agent = agent_of(ScriptedChatModel([*script, *["Done."] * 3]))
    session = agent.session("s1")
    await session.run("Look it up.")

    assert list((await replay(session, agent)).differences) == []
