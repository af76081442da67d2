"""Plans that are chosen from several requests for the same step."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from graph_agent import (
    Candidate,
    GraphAgent,
    LoopConfig,
    PlanJudge,
    ScriptedChatModel,
    create_graph_agent,
)
from graph_agent.errors import ConfigError
from graph_agent.marks import marked
from graph_agent.spec import load_spec, open_agent
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


@pytest.mark.parametrize(("budget", "reason"), [(329, "token_limit"), (10_000, "completed")])
async def test_the_tokens_of_all_candidates_count_against_the_budget(budget: int, reason: str) -> None:
    script = [calls(("look", "a"))] * 3
    session = agent_of(ScriptedChatModel([*script, *["Done."] * 3]), max_tokens_total=budget).session("s1")

    result = await session.run("Look it up.")

    assert result.stop_reason == reason


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

    _asked: int = PrivateAttr(default=0)

    async def _agenerate(self, *given: Any, **kwargs: Any) -> ChatResult:
        self._asked += 1
        if self._asked == 3:
            await asyncio.Event().wait()
        return await super()._agenerate(*given, **kwargs)


async def test_a_late_candidate_is_cancelled_once_the_choice_is_certain() -> None:
    session = agent_of(Late(responses=[calls(("look", "a")), calls(("look", "a")), *["Done."] * 3])).session("s1")
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


class Observed(ScriptedChatModel):
    """Keeps the system prompt and the temperature of each request."""

    _received: list[tuple[str, Any]] = PrivateAttr(default_factory=list)

    async def _agenerate(self, messages: list[BaseMessage], *given: Any, **kwargs: Any) -> ChatResult:
        self._received.append((messages[0].text if messages[0].type == "system" else "", kwargs.get("temperature")))
        return await super()._agenerate(messages, *given, **kwargs)


async def test_candidates_of_a_list_are_asked_with_their_own_model_prompt_and_temperature() -> None:
    own, other = (
        Observed(responses=[calls(("look", "a")), "Done.", "Done."]),
        Observed(responses=[calls(("look", "a"))] * 2),
    )
    listed = [Candidate(temperature=0.9), Candidate(model=other), Candidate(model=other, prompt="Think twice.")]
    config = LoopConfig(candidates=listed, temperature=0.1, finalize="direct")
    agent = create_graph_agent(own, [look, skip], system_prompt="Be kind.", config=config, checkpointer=InMemorySaver())
    other.responses += ["Done.", "Done."]
    session = agent.session("s1")
    result = await session.run("Look it up.", context={"max_steps": 2})
    [planned, *_] = [event for event in await session.events() if event["type"] == "plan"]

    assert [*result.results.values()] == ["found a"]
    assert own._received[0][1] == 0.9
    assert [(("Think twice." in text), temperature) for text, temperature in other._received[:2]] == [
        (False, 0.1),
        (True, 0.1),
    ]
    assert all("Be kind." in text for text, _ in other._received)
    assert ["model" in each for each in planned["candidates"]] == [False, True, True]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_chooses_among_the_plans_that_differ(*, is_async: bool) -> None:
    offered: list[tuple[int, list[str]]] = []

    def pick(plans: Any) -> int:
        offered.extend((plan.votes, [call["arguments"]["text"] for call in plan.calls]) for plan in plans)
        return 1

    async def pick_later(plans: Any) -> int:
        return pick(plans)

    script = [calls(("look", "a")), calls(("look", "b")), calls(("look", "a"))]
    choose = pick_later if is_async else pick
    session = agent_of(ScriptedChatModel([*script, *["Done."] * 3]), choose=choose).session("s1")
    result = await session.run("Look it up.")
    [first, *_] = [event for event in await session.events() if event["type"] == "plan"]

    assert (offered, [*result.results.values()]) == ([(2, ["a"]), (1, ["b"])], ["found b"])
    assert [each["status"] for each in first["candidates"]] == ["dropped", "chosen", "dropped"]
    assert result.usage["model_calls"] == 6


@pytest.mark.parametrize(
    ("choose", "reason"),
    [
        (len, "returned 2; return the index of one of the 2 plans, from 0 on."),
        (lambda plans: {}[plans[0].text], "failed: KeyError"),
        (lambda plans: open("/nowhere/at/all"), "failed: FileNotFoundError"),  # noqa: SIM115 - it fails
    ],
)
async def test_a_function_that_names_no_plan_fails_the_input_and_all_candidates_are_counted(
    choose: Any, reason: str
) -> None:
    script = [calls(("look", "a")), calls(("look", "b")), calls(("look", "a"))]
    session = agent_of(ScriptedChatModel(script), choose=choose).session("s1")
    result = await session.run("Look it up.")
    [error] = [event for event in await session.events() if event["type"] == "error"]

    assert (result.status.value, result.usage["model_calls"], result.usage["total_tokens"]) == ("FAILED", 3, 330)
    assert (error["kind"], reason in error["message"]) == ("hook", True)


async def test_a_model_chooses_among_the_plans_that_differ_and_is_counted() -> None:
    judge = ScriptedChatModel([AIMessage("Plan 2.", usage_metadata=calls(tokens=5).usage_metadata)])
    script = [calls(("look", "a")), calls(("look", "b")), calls(("look", "a"))]
    settings = {"choose": PlanJudge(model=judge, prompt="The later letter is better.")}
    session = agent_of(ScriptedChatModel([*script, *["Done."] * 3]), **settings).session("s1")
    result = await session.run("Look it up.")
    [first, *_] = [event for event in await session.events() if event["type"] == "plan"]
    asked = judge.requests[0].messages[-1].text

    assert [*result.results.values()] == ["found b"]
    assert (first["judge"]["index"], first["judge"]["usage"]["total_tokens"]) == (1, 105)
    assert (result.usage["model_calls"], len(judge.requests)) == (7, 1)
    assert "The later letter is better." in asked
    assert 'Plan 2: [{"tool": "look", "arguments": {"text": "b"}}]' in asked


@pytest.mark.parametrize("reply", ["Neither.", "Plan 3.", ValueError("an invalid request")])
async def test_the_plan_of_most_candidates_is_taken_if_the_judging_model_chooses_none(reply: Any) -> None:
    judge = Failing(responses=[reply if isinstance(reply, str) else "1"])
    judge._fails = set() if isinstance(reply, str) else {0}
    script = [calls(("skip", "a")), calls(("look", "b")), calls(("look", "b"))]
    session = agent_of(ScriptedChatModel([*script, *["Done."] * 3]), choose=PlanJudge(model=judge)).session("s1")
    result = await session.run("Look it up.")
    [warning] = [event["message"] for event in await session.events() if event["type"] == "warning"]

    assert ([*result.results.values()], "which chooses a plan" in warning) == (["found b"], True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"candidates": 0}, "candidates=0: give 1 to 16 candidates."),
        ({"candidates": []}, "candidates=[]: give 1 to 16 candidates."),
        ({"candidates": ["openai:x"]}, "item 0 is 'openai:x'; write Candidate(model=…), or a mapping"),
        ({"candidates": [{"modl": "x"}]}, "Did you mean 'model'?"),
        ({"choose": "best"}, "choose='best': write 'agreed' or 'cheapest', or give a PlanJudge, or a function"),
        ({"choose": lambda: 0}, "a function takes one argument, the plans"),
    ],
)
def test_an_invalid_candidate_or_chooser_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoopConfig(**fields)

    assert message in str(caught.value)


def test_a_model_of_a_candidate_that_cannot_be_built_is_refused_when_the_agent_is_built() -> None:
    with pytest.raises(ConfigError, match="candidates"):
        agent_of(ScriptedChatModel(["Done."]), candidates=[Candidate(model="nowhere:x")])


CHOOSE = """
def last(plans):
    return len(plans) - 1
"""
AGENT = """
name: a
model: openai:gpt-4o-mini
tools: [graph_agent_chooser:look]
config:
  candidates: [{temperature: 0}, {prompt: Think twice.}]
  choose: graph_agent_chooser:last
db: "memory:"
"""
LOOK = """
def look(text: str) -> str:
    \"\"\"Look up.\"\"\"
    return f"found {text}"
"""


async def test_an_agent_file_lists_candidates_and_names_the_function_that_chooses(tmp_path: Path) -> None:
    (tmp_path / "graph_agent_chooser.py").write_text(CHOOSE + LOOK, encoding="utf-8")
    (tmp_path / "agent.yaml").write_text(AGENT, encoding="utf-8")
    model = ScriptedChatModel([calls(("look", "a")), calls(("look", "b")), "Done.", "Done."])
    async with open_agent(load_spec(tmp_path / "agent.yaml"), model=model) as agent:
        result = await agent.session("s1").run("Look it up.")

    assert [*result.results.values()] == ["found b"]


class Held(ScriptedChatModel):
    """Answers its third request once `may_answer` is set."""

    _may_answer: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    async def _agenerate(self, *given: Any, **kwargs: Any) -> ChatResult:
        if len(self.requests) == 2:
            await self._may_answer.wait()
        return await super()._agenerate(*given, **kwargs)


@pytest.mark.parametrize(("dispatch", "is_early"), [("streamed", True), ("whole", False)])
async def test_a_reading_call_that_will_be_chosen_begins_while_a_candidate_is_pending(
    dispatch: Literal["whole", "streamed"], *, is_early: bool
) -> None:
    ran: list[str] = []
    script = [calls(("look", "a"), ("save", "b")), calls(("look", "a"), ("look", "c"), ("save", "b"))]
    model = Held(responses=[*script, script[1], *["Done."] * 3])

    async def look(text: str) -> str:
        """Look up."""
        ran.append(f"look {text}")
        model._may_answer.set()
        return f"found {text}"

    async def save(text: str) -> str:
        """Save."""
        ran.append(f"save {text}")
        return "saved"

    config = LoopConfig(candidates=3, dispatch=dispatch)
    agent = create_graph_agent(model, [marked(look, effect="read"), save], config=config, checkpointer=InMemorySaver())
    if not is_early:
        model._may_answer.set()
    session = agent.session("s1")
    result = await session.run("Look it up.", context={"deadline_s": 60})
    events = await session.events()
    early = [event["early"]["agreed"] for event in events if "agreed" in event.get("early", {})]

    assert sorted(map(str, result.results.values())) == ["found a", "found c", "saved"]
    assert (sorted(ran), bool(early)) == (["look a", "look c", "save b"], is_early)
