"""Properties of predicted plans and of candidates: what begins early changes nothing but the time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from tests.support.examples import many_examples

DONE = '{"status": "done", "tools": [], "answer": "Done."}'
_TURNS = 20
"""Milliseconds that a slow call lasts at least."""


@pytest.fixture(autouse=True, scope="module")
def _predicts_at_once() -> Iterator[None]:
    """Let each call that is slower than the others have a prediction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graph_agent.core.planning.predicted_plan.LEAST_LEAD_S", 0)
        yield


class Bench(NamedTuple):
    """Tools that read and write, and what they have done."""

    began: Counter[str]
    open_writes: list[str]
    late: list[str]
    """Writing calls that began while a call of an earlier wave had no result."""
    running: Counter[int]

    @classmethod
    def new(cls) -> Bench:
        return cls(Counter(), [], [], Counter())

    def tools(self) -> list[BaseTool]:
        async def work(kind: str, wave: int, text: str) -> str:
            self.began[f"{kind} {wave} {text}"] += 1
            if kind == "write" and any(count for earlier, count in self.running.items() if earlier < wave):
                self.late.append(text)
            self.running[wave] += 1
            try:
                for _ in range(_TURNS if kind == "slow" else 1):
                    await asyncio.sleep(0.001 if kind == "slow" else 0)
            finally:
                self.running[wave] -= 1
            return f"{kind} {wave} {text}"

        @tool
        async def read(wave: int, text: str) -> str:
            """Read."""
            return await work("read", wave, text)

        @tool
        async def slow(wave: int, text: str) -> str:
            """Read slowly."""
            return await work("slow", wave, text)

        @tool
        async def write(wave: int, text: str) -> str:
            """Write."""
            return await work("write", wave, text)

        read.metadata = slow.metadata = {"effect": "read"}
        return [read, slow, write]


Wave = list[tuple[str, str]]


def plan_of(wave: Sequence[tuple[str, str]], number: int, status: str = "continue") -> str:
    tools = [
        {"id": f"w{number}c{at}", "tool": name, "args": {"wave": number, "text": text}}
        for at, (name, text) in enumerate(wave)
    ]
    return json.dumps({"status": status, "tools": tools})


class Planner(ScriptedChatModel):
    """Plans by what the conversation holds: the same for a request that is sent again, and another for a prediction."""

    _waves: list[Wave] = PrivateAttr(default_factory=list)
    _predicted: list[str | None] = PrivateAttr(default_factory=list)
    """Reply to the prediction of each wave; None for the plan that is made without it."""

    async def _agenerate(self, messages: list[BaseMessage], *given: Any, **kwargs: Any) -> ChatResult:
        number = sum(message.type == "ai" for message in messages)
        plain = plan_of(self._waves[number], number) if number < len(self._waves) else DONE
        predicted = self._predicted[number] if number < len(self._predicted) else None
        is_prediction = "PENDING" in messages[-1].text
        await asyncio.sleep(0)
        reply = AIMessage(predicted if is_prediction and predicted is not None else plain)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _astream(
        self, messages: list[BaseMessage], *given: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        text = (await self._agenerate(messages)).generations[0].text
        for start in range(0, len(text), 20):
            yield ChatGenerationChunk(message=AIMessageChunk(content=text[start : start + 20]))
            await asyncio.sleep(0)


def shown(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event without times, usage, and what has begun early."""
    left_out = {"ts", "seq", "early", "model_calls", "candidates", "judge"}
    return {key: value for key, value in event.items() if key not in left_out and not key.endswith("_s")}


async def outcome(model: ScriptedChatModel, bench: Bench, **config: Any) -> list[dict[str, Any]]:
    """The events of one input, in the order of their calls."""
    settings = LoopConfig(tool_calling="wave", max_steps=9, loop_detection=False, **config)
    agent = create_graph_agent(model, bench.tools(), config=settings, checkpointer=InMemorySaver())
    session = agent.session("s1")
    await session.run("Do it.")
    return [shown(event) for event in await session.events()]


def plans_in(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The plans of a session, as a model would write them."""
    arguments = {event["id"]: event["arguments"] for event in events if event["type"] == "tool_call"}
    return [
        json.dumps(
            {
                "status": event["status"],
                "action": event["action"],
                "reasoning": event["reasoning"],
                "tools": [
                    {"id": call["plan_id"], "tool": call["name"], "args": arguments[call["id"]]}
                    for call in event["calls"]
                ],
            }
        )
        for event in events
        if event["type"] == "plan" and event["calls"]
    ]


async def check(events: Sequence[Mapping[str, Any]], bench: Bench) -> None:
    """Assert what holds for each history: it is that of its plans alone, and each call has one result."""
    alone = Bench.new()
    expected = await outcome(ScriptedChatModel([*plans_in(events), DONE]), alone)
    planned = [call["id"] for event in events if event["type"] == "plan" for call in event["calls"]]
    settled = [event["id"] for event in events if event["type"] == "tool_result"]

    assert sorted(map(str, events)) == sorted(map(str, expected))
    assert sorted(planned) == sorted(settled)
    writes = {text: count for text, count in bench.began.items() if text.startswith("write")}
    assert writes == {text: count for text, count in alone.began.items() if text.startswith("write")}
    assert bench.late == []


_WAVES = st.lists(
    st.lists(st.tuples(st.sampled_from(["read", "slow", "write"]), st.sampled_from("ab")), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)
_KINDS = st.sampled_from(["same", "wait", "done", "other", "dependent", "invalid"])


def prediction(kind: str, number: int) -> str | None:
    """The reply to the prediction of a wave; None for the plan that is made without it."""
    match kind:
        case "wait" | "done":
            return json.dumps({"status": kind, "tools": []})
        case "other":
            return plan_of([("read", "o"), ("write", "p")], number)
        case "dependent":
            needs = [f"w{number - 1}c{at}" for at in range(3)]
            call = {"id": "d", "tool": "read", "args": {"wave": number, "text": "d"}, "needs": needs[:1]}
            return json.dumps({"status": "continue", "tools": [call]})
        case "invalid":
            return '{"status": "continue", "tools": [{}]}'
    return None


async def test_these_waves_have_predictions_that_are_taken() -> None:
    bench = Bench.new()
    model = Planner(responses=["unused"])
    model._waves = [[("read", "a"), ("slow", "b")], [("read", "c")]]
    settings = LoopConfig(tool_calling="wave", predict=True)
    agent = create_graph_agent(model, bench.tools(), config=settings, checkpointer=InMemorySaver())
    taken = 0
    for at in range(20):
        session = agent.session(str(at))
        await session.run("Do it.")
        events = await session.events()
        taken += sum(event.get("early", {}).get("request", {}).get("used", 0) for event in events)

    assert taken > 0


@many_examples
@given(_WAVES, st.lists(_KINDS, min_size=4, max_size=4), st.sampled_from(["whole", "streamed"]))
async def test_a_history_with_predictions_is_that_of_its_plans_alone(
    waves: list[Wave], kinds: list[str], dispatch: str
) -> None:
    bench = Bench.new()
    model = Planner(responses=["unused"])
    model._waves = waves
    model._predicted = [prediction(kind, number) for number, kind in enumerate(kinds)]
    await check(await outcome(model, bench, predict=True, dispatch=dispatch), bench)


@many_examples
@given(
    st.lists(
        st.tuples(_WAVES.map(lambda waves: waves[0]), st.lists(st.integers(0, 2), min_size=3, max_size=3)), max_size=2
    ),
    st.sampled_from(["agreed", "cheapest"]),
    st.sampled_from(["whole", "streamed"]),
)
async def test_a_history_with_candidates_is_that_of_its_plans_alone(
    steps: list[tuple[Wave, list[int]]], choose: str, dispatch: str
) -> None:
    bench = Bench.new()
    script = [
        plan_of([*wave, *[("read", "e")] * extra], number)
        for number, (wave, extras) in enumerate(steps)
        for extra in extras
    ]
    model = ScriptedChatModel([*script, *[DONE] * 3])
    await check(await outcome(model, bench, candidates=3, choose=choose, dispatch=dispatch), bench)
