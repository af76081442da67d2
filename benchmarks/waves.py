"""Cost of wave planning and savings by `needs`: `python -m benchmarks.waves`.

The first table compares one wave of N calls with LangChain's `create_agent`, LangGraph's `ToolNode` alone, and
a bare `asyncio.gather` of the same calls; each round runs them one after the other, and the ratios are medians over the
rounds, so that a machine whose speed drifts does not tilt them. The tool does nothing, so that what is left is
overhead. The second table asks for dates and then for rooms, of a model that takes a fixed time to reply: two waves,
the same with `done`, and one wave with `needs`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent

Run = Callable[[], Awaitable[Any]]

GO: dict[str, Any] = {"messages": [HumanMessage("go")]}


@tool
async def lookup(key: str) -> str:
    """Look a key up."""
    return f"the value of {key}"


def plan(*calls: dict[str, Any], status: str) -> str:
    """A structured plan."""
    return json.dumps({"status": status, "tools": list(calls)})


def native(calls: int) -> AIMessage:
    """One message that asks for all calls."""
    asked = [{"id": f"c{i}", "name": "lookup", "args": {"key": f"k{i}"}} for i in range(calls)]
    return AIMessage("", tool_calls=asked)


def wave_run(calls: int) -> Run:
    """This framework, planning in waves."""
    wave = plan(*({"id": f"c{i}", "tool": "lookup", "args": {"key": f"k{i}"}} for i in range(calls)), status="done")
    config = LoopConfig(tool_calling="wave", max_calls_per_wave=calls, max_parallel_calls=calls)
    graph = create_graph_agent(ScriptedChatModel([wave, "Done."]), tools=[lookup], config=config)
    return lambda: graph.ainvoke(GO)


def native_run(calls: int) -> Run:
    """This framework, with the provider's tool calls."""
    config = LoopConfig(max_parallel_calls=calls)
    model = ScriptedChatModel([native(calls), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[lookup], config=config)
    return lambda: graph.ainvoke(GO)


def create_agent_run(calls: int) -> Run:
    """LangChain's agent."""
    graph: Any = create_agent(ScriptedChatModel([native(calls), "Done."]), tools=[lookup])
    return lambda: graph.ainvoke(GO)


def tool_node_run(calls: int) -> Run:
    """LangGraph's `ToolNode` in a graph of its own: the calls without planning."""
    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([lookup]))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    compiled = graph.compile()
    return lambda: compiled.ainvoke({"messages": [native(calls)]})


def gather_run(calls: int) -> Run:
    """A loop written by hand."""

    async def run() -> list[Any]:
        asked = native(calls).tool_calls
        return list(await asyncio.gather(*(lookup.ainvoke(call["args"]) for call in asked)))

    return run


BUILDERS: dict[str, Callable[[int], Run]] = {
    "wave": wave_run,
    "native": native_run,
    "create_agent": create_agent_run,
    "ToolNode": tool_node_run,
    "gather": gather_run,
}


async def seconds_of(run: Run) -> float:
    """Seconds for one run of something that is built."""
    gc.collect()
    begun = time.perf_counter()
    await run()
    return time.perf_counter() - begun


async def compare_overhead(calls: int, rounds: int) -> None:
    """Time all of them in turn, and print one line each."""
    seconds: dict[str, list[float]] = {name: [] for name in BUILDERS}
    for build in BUILDERS.values():
        await seconds_of(build(calls))  # the first run of anything pays for its imports
    for _ in range(rounds):
        for name, build in BUILDERS.items():
            seconds[name].append(await seconds_of(build(calls)))
    for name, taken in seconds.items():
        ratios = [
            statistics.median(a / b for a, b in zip(taken, seconds[other], strict=True))
            for other in ("create_agent", "ToolNode", "gather")
        ]
        per_call = 1000 * statistics.median(taken) / calls
        print(f"{calls:6} {name:13} {per_call:9.3f} {ratios[0]:13.2f} {ratios[1]:9.2f} {ratios[2]:9.2f}")


class SlowModel(ScriptedChatModel):
    """A scripted model that takes a while to reply."""

    latency_s: float

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(self.latency_s)
        return await super()._agenerate(*args, **kwargs)


@tool
async def dates(of: str) -> dict[str, str]:
    """Return the dates of a holiday."""
    return {"from": "2026-12-04", "to": "2026-12-12", "of": of}


@tool
async def rooms(check_in: str, check_out: str) -> list[str]:
    """List free rooms."""
    return [f"a room from {check_in} to {check_out}"]


_DATES = {"id": "d", "tool": "dates", "args": {"of": "Hanukkah"}}
_ROOMS = {"id": "r", "tool": "rooms", "args": {"check_in": "2026-12-04", "check_out": "2026-12-12"}}
_ROOMS_BY_NEED = {"id": "r", "tool": "rooms", "args": {"check_in": "${d.from}", "check_out": "${d.to}"}}

TWO_LEVELS: dict[str, list[str]] = {
    "two waves": [plan(_DATES, status="continue"), plan(_ROOMS, status="continue"), plan(status="done")],
    "two waves, done": [plan(_DATES, status="continue"), plan(_ROOMS, status="done")],
    "needs": [plan(_DATES, _ROOMS_BY_NEED, status="done")],
}


async def compare_needs(latency_s: float, rounds: int) -> None:
    """Time a question of two levels in each way, and print one line each."""
    seconds: dict[str, list[float]] = {name: [] for name in TWO_LEVELS}
    model_calls: dict[str, int] = {}
    for _ in range(rounds):
        for name, script in TWO_LEVELS.items():
            model = SlowModel(responses=[*script, "Done."], latency_s=latency_s)
            graph = create_graph_agent(model, tools=[dates, rooms], config=LoopConfig(tool_calling="wave"))
            seconds[name].append(await seconds_of(functools.partial(graph.ainvoke, GO)))
            model.assert_spent()
            model_calls[name] = len(model.requests)
    for name, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(taken, seconds["two waves"], strict=True))
        print(f"{name:16} {model_calls[name]:11} {1000 * statistics.median(taken):9.1f} {ratio:9.2f}")


def main() -> None:
    """Run both comparisons and print them."""
    parser = argparse.ArgumentParser(description="The cost of a wave, and what needs saves.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 10, 100, 500])
    parser.add_argument("--latency-ms", type=float, default=200, help="what the model takes to reply")
    options = parser.parse_args()
    print(f"{'calls':>6} {'':13} {'ms/call':>9} {'/create_agent':>13} {'/ToolNode':>9} {'/gather':>9}")
    for calls in options.calls:
        asyncio.run(compare_overhead(calls, options.rounds))
    print(f"\n{'':16} {'model calls':>11} {'ms':>9} {'ratio':>9}")
    asyncio.run(compare_needs(options.latency_ms / 1000, options.rounds))


if __name__ == "__main__":
    main()
