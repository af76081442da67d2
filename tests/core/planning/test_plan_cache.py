"""Plans taken from a cache."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.spec import load_spec, open_agent
from tests.support.agents import add, asks, echo
from tests.support.fault_truth import orphans

DONE = ["No more actions.", "Done."]
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


async def plans_of(talk: Session) -> list[tuple[bool, list[str]]]:
    """Of each plan: whether it is marked as cached, and the ids of its calls."""
    events = await talk.events()
    return [("cached" in e, [call["id"] for call in e["calls"]]) for e in events if e["type"] == "plan"]


async def test_the_same_request_is_planned_once(cache: BaseCache[Any]) -> None:
    model = ScriptedChatModel([PLAN, "First.", "Second."])
    first, second = session(cache, model, "s1"), session(cache, model, "s2")
    one = await first.run("go")

    two = await second.run("go")

    model.assert_spent()
    assert (
        one.results,
        two.results,
        two.answer,
        two.usage["model_calls"],
        await plans_of(first),
        await plans_of(second),
    ) == (
        {"a": 3, "b": 13},
        {"a": 3, "b": 13},
        "Second.",
        1,
        [(False, ["a", "b"])],
        [(True, ["a", "b"])],
    )


async def test_calls_in_native_mode_are_cached_too(cache: BaseCache[Any]) -> None:
    wave = asks(("1", "echo", {"text": "x"}))
    model = ScriptedChatModel([wave, "No more actions.", "First.", "Second."])
    await session(cache, model, "s1", tool_calling="native", tools=[echo]).run("go")

    result = await session(cache, model, "s2", tool_calling="native", tools=[echo]).run("go")

    model.assert_spent()
    assert (result.results, result.answer) == ({"1": "x"}, "Second.")


class SecondPlanOnly(InMemoryCache[Any]):
    """Keeps the second plan it is given, and no other."""

    given = 0

    async def aset(self, keys: Any) -> None:
        self.given += 1
        if self.given == 2:
            await super().aset(keys)


async def test_an_id_that_the_conversation_has_is_replaced() -> None:
    def asks_for(id_: str, text: str) -> AIMessage:
        block = {"type": "tool_use", "id": id_, "name": "echo", "input": {"text": text}}
        return AIMessage([block], tool_calls=[{"id": id_, "name": "echo", "args": {"text": text}}])

    # The second session's model gives its first call the id that the kept plan's call has.
    script: list[Any] = [asks_for("1", "x"), asks_for("2", "${2}"), *DONE, asks_for("2", "x"), *DONE]
    model, cache = ScriptedChatModel(script), SecondPlanOnly()
    await session(cache, model, "s1", tool_calling="native", tools=[echo]).run("go")
    talk = session(cache, model, "s2", tool_calling="native", tools=[echo])

    result = await talk.run("go")

    model.assert_spent()
    request = model.requests[-1].messages
    planned = [message for message in request if isinstance(message, AIMessage) and message.tool_calls]
    ids = [message.tool_calls[0]["id"] for message in planned]
    assert (ids[0], result.results, [message.content for message in planned], orphans(request)) == (
        "2",
        {"2": "x", ids[1]: "${2}"},
        [script[4].content, []],
        [],
    )


async def test_a_cache_that_fails_is_passed_by(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(InMemoryCache[Any]):
        async def aget(self, keys: Any) -> Any:
            raise OSError("no disk")

        async def aset(self, keys: Any) -> None:
            raise OSError("no disk")

    result = await session(Broken(), ScriptedChatModel([PLAN, "First."]), "s1").run("go")

    assert (result.answer, [record.levelname for record in caplog.records if "plan cache" in record.getMessage()]) == (
        "First.",
        ["WARNING", "WARNING"],
    )


@pytest.mark.parametrize("url", ["memory", "sqlite:///plans.db"])
async def test_an_agent_file_keeps_plans(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = load_spec(agent_file(tmp_path, f"cache: '{url}'\nconfig: {{plan_cache_ttl_s: 60, tool_calling: wave}}"))

    async with open_agent(spec, db="memory:") as graph:
        results = [(await Session(graph, id_).run("go")).usage["model_calls"] for id_ in ("s1", "s2")]
    async with open_agent(spec, db="memory:") as graph:
        reopened = (await Session(graph, "s3").run("go")).usage["model_calls"]

    assert (results, reopened) == ([2, 1], 2 if url == "memory" else 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "cache: redis://x\nconfig: {plan_cache_ttl_s: 60}",
            "cache='redis://x': no such kind of cache; use 'memory' or",
        ),
        ("cache: {kind: memory}", "cache={'kind': 'memory'}: Input should be a valid string"),
        ("cache: memory", "is never used without config.plan_cache_ttl_s; write for how many seconds"),
        ("config: {plan_cache_ttl_s: 60}", "config.plan_cache_ttl_s needs a cache; write e.g. 'cache: memory'"),
        ("cache: sqlite:///no/where.db\nconfig: {plan_cache_ttl_s: 60}", "cache='sqlite:///no/where.db': the folder"),
        ("cache: sqlite:///agent.yaml\nconfig: {plan_cache_ttl_s: 60}", "agent.yaml cannot be opened: file is not"),
    ],
    ids=["kind", "shape", "no time", "no cache", "no folder", "no database"],
)
async def test_a_cache_that_cannot_be_used_is_an_error(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = agent_file(tmp_path, content)

    with pytest.raises(ConfigError) as caught:
        async with open_agent(load_spec(file), db=""):
            pass

    assert message in str(caught.value)


def agent_file(folder: Path, content: str) -> Path:
    """An agent file whose model plans `PLAN` whenever it is asked to."""
    code = f"""
        import json
        from graph_agent import ScriptedChatModel

        PLAN = json.loads({json.dumps(PLAN)!r})

        class Planner(ScriptedChatModel):
            def _reply(self, messages, stop, kwargs):
                final = messages[-1].text.startswith("Now provide your final response")
                return ScriptedChatModel(["Done." if final else PLAN])._reply(messages, stop, kwargs)

        def make():
            return Planner([])

        def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b
        """
    (folder / "cached_agent.py").write_text(textwrap.dedent(code))
    file = folder / "agent.yaml"
    file.write_text(f"name: a\nmodel: 'cached_agent:make'\ntools: ['cached_agent:add']\n{content}\n")
    return file


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


async def test_different_text_is_planned_again(cache: BaseCache[Any]) -> None:
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
