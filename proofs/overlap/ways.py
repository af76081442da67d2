"""The ways of answering an item, each with a scripted model and tools that take time on the loop's clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import create_model

from graph_agent import GraphAgent, LoopConfig, create_graph_agent
from proofs.overlap import compiler
from proofs.overlap.items import Item, Step
from proofs.overlap.level_planner import LevelPlanner
from proofs.virtual_clock import TimedModel, run_virtually, tokens_of


@dataclass(frozen=True)
class Pace:
    """The seconds that replies and calls take."""

    first_token_s: float
    """From a request to the first token of its reply."""
    token_s: float
    """For each token of a reply."""
    call_s: float
    """For each call of a tool."""
    slow_call_s: float = 0.0
    """For each call that is slow."""

    def model(self, replies: Sequence[Any]) -> TimedModel:
        """Return a model that streams these replies at this pace."""
        return TimedModel(replies, self._stream_s, first_token_s=self.first_token_s)

    def planner(self, item: Item, *, waits: bool = False) -> LevelPlanner:
        """Return a model that plans the levels of an item at this pace; see `LevelPlanner`."""
        return LevelPlanner(item, self._stream_s, self.first_token_s, waits=waits)

    def _stream_s(self, reply: AIMessage) -> float:
        return tokens_of(reply) * self.token_s


Work = Callable[[], Awaitable[str]]
"""Answers the item, and returns the answer."""
Way = Callable[[Item, Pace], Awaitable[Work]]
"""Prepares the work of an item, which is not measured."""


async def with_create_agent(item: Item, pace: Pace) -> Work:
    """LangChain's `create_agent`: each reply has the calls of a level."""
    graph: Any = create_agent(pace.model([*_levels(item), item.answer]), tools=tools_of(item, pace))

    async def run() -> str:
        state = await graph.ainvoke({"messages": [HumanMessage(item.question)]})
        text: str = state["messages"][-1].text
        return text

    return run


async def with_compiler(item: Item, pace: Pace) -> Work:
    """LLMCompiler, written by hand."""
    model = pace.model([compiler.plan_of(item), item.answer])
    tools = {tool.name: tool for tool in tools_of(item, pace)}
    return lambda: compiler.answer(model, item.question, tools)


def with_plan(copies: int = 1, **config: Any) -> Way:
    """Return the way of one structured plan, whose fields are in the order in which the agent asks for them.

    Args:
        copies: How often the plan is asked for; the answer is no plan, and is asked for once.
        **config: Fields of `LoopConfig`.
    """
    calls_first = config.get("dispatch") == "streamed"
    return _with_agent(
        lambda item: [*([_plan(item, calls_first)] * copies), item.answer], tool_calling="wave", **config
    )


def with_levels(learned: int = 0, **config: Any) -> Way:
    """Return the way of native calls: each reply has the calls of a level.

    Args:
        learned: How often the agent has answered the item before.
        **config: Fields of `LoopConfig`.
    """
    return _with_agent(lambda item: [*_levels(item), item.answer], learned, **config)


def by_level(*, waits: bool = False, **config: Any) -> Way:
    """Return the way of structured plans of one level each.

    Args:
        waits: Whether the model answers each request for a predicted plan with the status `wait`.
        **config: Fields of `LoopConfig`.
    """

    async def prepare(item: Item, pace: Pace) -> Work:
        settings = LoopConfig(max_steps=len(item.steps) + 1, tool_calling="wave", **config)
        agent = create_graph_agent(pace.planner(item, waits=waits), tools=tools_of(item, pace), config=settings)
        return lambda: _answer_of(agent, item)

    return prepare


async def _answer_of(agent: GraphAgent[Any, Any], item: Item) -> str:
    state = await agent.ainvoke({"messages": [HumanMessage(item.question)]})
    assert state["status"] == "COMPLETED", state
    text: str = state["messages"][-1].text
    return text


def _with_agent(script: Callable[[Item], list[Any]], learned: int = 0, **config: Any) -> Way:
    async def prepare(item: Item, pace: Pace) -> Work:
        settings = LoopConfig(max_steps=len(item.levels) + 1, **config)
        model = pace.model(script(item) * (1 + learned))
        agent = create_graph_agent(model, tools=tools_of(item, pace), config=settings)
        for _ in range(learned):
            await _answer_of(agent, item)
        return lambda: _answer_of(agent, item)

    return prepare


CREATE_AGENT, COMPILER = "create_agent", "LLMCompiler by hand"
WAVE, STREAMED, CANDIDATES = "wave", "streamed", "candidates"
NATIVE, LEARNED = "native", "table"
BY_LEVEL, PREDICTED, IN_VAIN = "wave, by level", "predicted", "in vain"
WAYS: dict[str, Way] = {
    CREATE_AGENT: with_create_agent,
    COMPILER: with_compiler,
    WAVE: with_plan(),
    STREAMED: with_plan(dispatch="streamed"),
    CANDIDATES: with_plan(3, candidates=3),
    NATIVE: with_levels(),
    LEARNED: with_levels(2, predict="table"),
    BY_LEVEL: by_level(),
    PREDICTED: by_level(predict=True),
    IN_VAIN: by_level(predict=True, waits=True),
}
"""Name → the way of answering."""
BASES = {STREAMED: WAVE, CANDIDATES: WAVE, LEARNED: NATIVE, PREDICTED: BY_LEVEL, IN_VAIN: BY_LEVEL}
"""Way → the same replies without overlap."""


def seconds(way: str, item: Item, pace: Pace) -> float:
    """Return the seconds of the loop's clock from the question to the whole answer, which must be that of the item."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        work = await WAYS[way](item, pace)
        began = loop.time()
        answer = await work()
        assert answer == item.answer, (way, item.question, answer)
        return loop.time() - began

    return run_virtually(run())


def tools_of(item: Item, pace: Pace) -> list[BaseTool]:
    """Return the tools of an item, which return its results."""
    called = {_key(step.tool, item.arguments(step)): step for step in item.steps}
    by_name: dict[str, list[Step]] = {}
    for step in item.steps:
        by_name.setdefault(step.tool, []).append(step)
    return [_tool(name, steps, called, pace) for name, steps in by_name.items()]


def _tool(name: str, steps: Sequence[Step], called: dict[str, Step], pace: Pace) -> BaseTool:
    async def run(**arguments: Any) -> Any:
        step = called[_key(name, arguments)]
        await asyncio.sleep(pace.slow_call_s if step.slow else pace.call_s)
        return step.result

    fields: dict[str, Any] = {argument: (Any, None) for step in steps for argument in step.args}
    effect = "read" if all(step.reads for step in steps) else "write"
    return StructuredTool(
        name=name,
        description=f"Runs {name}.",
        args_schema=create_model(f"{name}_arguments", **fields),
        coroutine=run,
        metadata={"effect": effect},
    )


def _key(tool: str, arguments: dict[str, Any]) -> str:
    given = {name: value for name, value in arguments.items() if value is not None}
    return f"{tool} {json.dumps(given, sort_keys=True)}"


def _levels(item: Item) -> list[AIMessage]:
    """Return a reply for each level, with its native calls."""
    return [
        AIMessage("", tool_calls=[{"id": step.id, "name": step.tool, "args": item.arguments(step)} for step in level])
        for level in item.levels
    ]


def _plan(item: Item, calls_first: bool) -> str:
    # A reference is a need, too.
    calls = [
        {"id": step.id, "tool": step.tool, "args": step.args, **({"needs": step.after} if step.after else {})}
        for level in item.levels
        for step in level
    ]
    plan = {
        "status": "done",
        "action": "find out",
        "slots": {},
        "tools": calls,
        "reasoning": "They answer it.",
    }
    return json.dumps({"tools": calls, **plan} if calls_first else plan)
