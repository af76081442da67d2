"""Plans taken from a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from tests.agents import add, asks, echo

PLAN = json.dumps(
    {
        "status": "done",
        "action": "add twice",
        "tools": [
            {"id": "a", "tool": "add", "args": {"a": 1, "b": 2}},
            {"id": "b", "tool": "add", "args": {"a": "${a}", "b": 10}},
        ],
    }
)


@pytest.fixture(params=["memory", "sqlite"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield InMemoryCache[Any]()
        return
    made = SqliteCache[Any](path=str(tmp_path / "cache.db"))
    yield made
    made._conn.close()


def session(cache: BaseCache[Any] | None, model: ScriptedChatModel, id_: str, **values: Any) -> Session:
    values.setdefault("tool_calling", "wave")
    values.setdefault("plan_cache_ttl_s", 60)
    tools = values.pop("tools", [add])
    graph = create_graph_agent(
        model, tools=tools, config=LoopConfig(**values), cache=cache, checkpointer=InMemorySaver()
    )
    return Session(graph, id_)


async def told(talk: Session) -> list[tuple[bool, list[str]]]:
    """Of each plan: whether it is marked as cached, and the ids of its calls."""
    events = await talk.events()
    return [("cached" in e, [call["id"] for call in e["calls"]]) for e in events if e["type"] == "plan"]


async def test_the_same_request_is_planned_once(cache: BaseCache[Any]) -> None:
    model = ScriptedChatModel([PLAN, "First.", "Second."])
    first, second = session(cache, model, "s1"), session(cache, model, "s2")
    one = await first.run("go")

    two = await second.run("go")

    model.assert_spent()
    ((_, old),), ((marked, new),) = await told(first), await told(second)
    assert (
        list(one.results.values()),
        list(two.results.values()),
        two.answer,
        two.usage["model_calls"],
        marked,
        set(old) & set(new),
    ) == ([3, 13], [3, 13], "Second.", 1, True, set())


async def test_calls_in_native_mode_are_cached_too(cache: BaseCache[Any]) -> None:
    wave = asks(("1", "echo", {"text": "x"}))
    model = ScriptedChatModel([wave, "No more actions.", "First.", "Second."])
    await session(cache, model, "s1", tool_calling="native", tools=[echo]).run("go")

    result = await session(cache, model, "s2", tool_calling="native", tools=[echo]).run("go")

    model.assert_spent()
    assert (list(result.results.values()), result.answer) == (["x"], "Second.")


@pytest.mark.parametrize(
    "changed",
    [{"tools": [add, echo]}, {"temperature": 0.5}, {"max_calls_per_wave": 7}, {"plan_cache_ttl_s": None}],
    ids=["tools", "options", "cap", "switched off"],
)
async def test_another_request_is_planned_anew(cache: BaseCache[Any], changed: dict[str, Any]) -> None:
    model = ScriptedChatModel([PLAN, "First.", PLAN, "Second."])
    await session(cache, model, "s1").run("go")

    await session(cache, model, "s2", **changed).run("go")

    model.assert_spent()


async def test_other_words_are_planned_anew(cache: BaseCache[Any]) -> None:
    model = ScriptedChatModel([PLAN, "First.", PLAN, "Second."])
    await session(cache, model, "s1").run("go")

    await session(cache, model, "s2").run("go on")

    model.assert_spent()


async def test_a_plan_that_cannot_be_carried_out_is_not_kept(cache: BaseCache[Any]) -> None:
    broken = '{"status": "done", "tools": [{"id": "a", "tool": "add", "needs": ["b"]}]}'
    model = ScriptedChatModel([broken, broken, PLAN, "Second."])
    failed = await session(cache, model, "s1").run("go")

    result = await session(cache, model, "s2").run("go")

    assert (failed.status, result.answer) == ("FAILED", "Second.")


def test_a_time_to_live_without_a_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no cache"):
        session(None, ScriptedChatModel(["x"]), "s1")
