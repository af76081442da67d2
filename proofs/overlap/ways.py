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

from graph_agent import LoopConfig, create_graph_agent
from proofs.overlap import compiler
from proofs.overlap.items import Item, Step
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

    def model(self, replies: Sequence[Any]) -> TimedModel:
        """Return a model that streams these replies at this pace."""
        return TimedModel(replies, lambda reply: tokens_of(reply) * self.token_s, first_token_s=self.first_token_s)


Way = Callable[[Item, Pace], Awaitable[str]]
"""Answers an item, and returns the answer."""


async def with_create_agent(item: Item, pace: Pace) -> str:
    """LangChain's `create_agent`: each reply has the calls of a level."""
    levels = [AIMessage("", tool_calls=[_native(item, step) for step in level]) for level in item.levels]
    graph: Any = create_agent(pace.model([*levels, item.answer]), tools=tools_of(item, pace))
    state = await graph.ainvoke({"messages": [HumanMessage(item.question)]})
    text: str = state["messages"][-1].text
    return text


async def with_compiler(item: Item, pace: Pace) -> str:
    """LLMCompiler, written by hand."""
    model = pace.model([compiler.plan_of(item), item.answer])
    return await compiler.answer(model, item.question, {tool.name: tool for tool in tools_of(item, pace)})


def with_plans(copies: int = 1, **config: Any) -> Way:
    """Return the way of one structured plan.

    Args:
        copies: How often each reply is asked for.
        **config: Fields of `LoopConfig`.
    """

    async def run(item: Item, pace: Pace) -> str:
        # The answer is asked for once: it is no plan.
        model = pace.model([*([_plan(item)] * copies), item.answer])
        settings = LoopConfig(tool_calling="wave", **config)
        agent = create_graph_agent(model, tools=tools_of(item, pace), config=settings)
        state = await agent.ainvoke({"messages": [HumanMessage(item.question)]})
        assert state["status"] == "COMPLETED", state
        text: str = state["messages"][-1].text
        return text

    return run


CREATE_AGENT, COMPILER, WAVE, STREAMED, CANDIDATES = (
    "create_agent",
    "LLMCompiler by hand",
    "wave",
    "streamed",
    "candidates",
)
WAYS: dict[str, Way] = {
    CREATE_AGENT: with_create_agent,
    COMPILER: with_compiler,
    WAVE: with_plans(),
    STREAMED: with_plans(dispatch="streamed"),
    CANDIDATES: with_plans(3, candidates=3),
}
"""Name → the way of answering."""


def seconds(way: str, item: Item, pace: Pace) -> float:
    """Return the seconds of the loop's clock from the question to the whole answer, which must be that of the item."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await WAYS[way](item, pace)
        assert answer == item.answer, (way, item.question, answer)
        return loop.time() - began

    return run_virtually(run())


def tools_of(item: Item, pace: Pace) -> list[BaseTool]:
    """Return the tools of an item, which return its results."""
    results = {_key(step.tool, item.arguments(step)): step.result for step in item.steps}
    by_name: dict[str, list[Step]] = {}
    for step in item.steps:
        by_name.setdefault(step.tool, []).append(step)
    return [_tool(name, steps, results, pace) for name, steps in by_name.items()]


def _tool(name: str, steps: Sequence[Step], results: dict[str, Any], pace: Pace) -> BaseTool:
    async def run(**arguments: Any) -> Any:
        await asyncio.sleep(pace.call_s)
        return results[_key(name, arguments)]

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


def _native(item: Item, step: Step) -> Any:
    return {"id": step.id, "name": step.tool, "args": item.arguments(step)}


def _plan(item: Item) -> str:
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
    return json.dumps(plan)
