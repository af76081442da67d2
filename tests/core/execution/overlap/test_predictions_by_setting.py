"""Predicted plans in each mode of calls, with the plan cache, and in shortened conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.testing import replay
from tests.support.predicted_plans import DONE, FIRST, Bench, Releasing, agent_of, plan

Calls = list[tuple[str, str, dict[str, Any]]]
WAVE: Calls = [("quick", "look", {"text": "a"}), ("slow", "wait_for", {"text": "b"})]
AHEAD: Calls = [("more", "look", {"text": "c"}), ("write", "save", {"text": "d"})]


def native(calls: Calls, text: str = "") -> AIMessage:
    made = [{"id": id_, "name": name, "args": args} for id_, name, args in calls]
    return AIMessage(text, tool_calls=made)


def written(calls: Calls, text: str = "") -> str:
    made = [json.dumps({"name": name, "arguments": args}) for _, name, args in calls]
    return "\n".join([text, *(f"<tool_call>{each}</tool_call>" for each in made)])


SCRIPTS: dict[str, Any] = {"native": native, "text": written}


def early_of(events: Any) -> dict[str, dict[str, Any]]:
    """The sums of `early` in the events of a session, by source."""
    sums: dict[str, dict[str, Any]] = {}
    for source, counts in (pair for event in events for pair in event.get("early", {}).items()):
        of = sums.setdefault(source, {})
        for name in ("started", "used", "dropped"):
            of[name] = of.get(name, 0) + counts.get(name, 0)
    return sums


@pytest.mark.parametrize("mode", SCRIPTS)
async def test_calls_are_predicted_in_each_mode_and_begin_while_the_slow_one_runs(mode: Any) -> None:
    script, bench = SCRIPTS[mode], Bench()
    model = ScriptedChatModel([script(WAVE), script(AHEAD, "I look further."), "Done."])
    agent = agent_of(model, bench, tool_calling=mode)
    session = agent.session("s1")
    parts = [part async for part in session.stream("Look it up.")]
    events = await session.events()
    (answer,) = [event["content"] for event in events if event["type"] == "agent_response"]

    assert (answer, bench.order) == ("Done.", ["look a", "look c", "wait_for b", "save d"])
    assert "PENDING" in model.requests[1].messages[-1].text
    assert early_of(events) == {
        "request": {"started": 1, "used": 1, "dropped": 0},
        "predicted": {"started": 1, "used": 1, "dropped": 0},
    }
    assert "".join(part.text for part in parts if part.type == "token") == "Done."
    assert "".join(part.text for part in parts if part.type == "plan_text").strip() == ("I look further.")
    assert list((await replay(session, agent)).differences) == []


@pytest.mark.parametrize("mode", SCRIPTS)
@pytest.mark.parametrize("reply", ["WAIT", "I guess."])
async def test_a_reply_without_calls_is_no_prediction_in_any_mode(mode: Any, reply: str) -> None:
    script, bench = SCRIPTS[mode], Bench()
    model = Releasing(responses=[script(WAVE), reply, script(AHEAD), "Done."])
    bench.may_end = model._may_end
    session = agent_of(model, bench, tool_calling=mode).session("s1")
    parts = [part async for part in session.stream("Look it up.")]

    assert (bench.order[:2], sorted(bench.order[2:])) == (["look a", "wait_for b"], ["look c", "save d"])
    assert early_of(await session.events()) == {"request": {"started": 1, "used": 0, "dropped": 1}}
    assert "".join(part.text for part in parts if part.type == "token") == "Done."


async def test_a_predicted_plan_is_kept_in_the_plan_cache_for_the_request_and_for_the_prediction() -> None:
    cache: InMemoryCache[Any] = InMemoryCache()
    orders: list[tuple[str, list[str]]] = []
    requests: list[int] = []
    for predict in (True, True, False):
        bench = Bench()
        bench.may_end.set() if not predict else None
        model = ScriptedChatModel([FIRST, plan(*AHEAD), DONE] if not requests else [])
        config = LoopConfig(predict=predict, tool_calling="wave", plan_cache_ttl_s=60, tool_timeout_s=60)
        agent = create_graph_agent(model, bench.tools(), config=config, checkpointer=InMemorySaver(), cache=cache)
        result = await agent.session("s1").run("Look it up.")
        orders.append((result.answer, sorted(bench.order)))
        requests.append(len(model.requests))

    assert requests == [3, 0, 0]
    assert orders == [("Done.", ["look a", "look c", "save d", "wait_for b"])] * 3


async def test_a_shortened_conversation_is_predicted_in_its_short_form() -> None:
    summary = "They have looked up many things."
    bench = Bench()
    answer = plan(status="done", answer="Yes.")
    model = ScriptedChatModel([answer, summary, FIRST, plan(*AHEAD), DONE])
    session = agent_of(model, bench, context_window=4_000, summarize_at=0.4).session("s1")
    await session.run("long " * 1_400)
    result = await session.run("Look it up.")
    predicted = [each.messages for each in model.requests if "PENDING" in each.messages[-1].text]

    assert (result.answer, bench.order) == ("Done.", ["look a", "look c", "wait_for b", "save d"])
    assert [(summary in str(each), str(each).count("long long")) for each in predicted] == [(True, 0)]
