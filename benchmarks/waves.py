"""Cost of a wave of parallel calls, and savings by `needs`: `python -m benchmarks.waves`.

One message asks for 100 or 500 calls that take 50 ms each; the ideal time is 50 ms, and the rest is overhead. Compared
are native calls and a structured plan, LangChain's `create_agent`, LangGraph's `ToolNode` alone, and a bare
`asyncio.gather` of the same calls. The second table asks for dates and then for rooms, with a model that takes 200 ms
to reply: two waves, the same with `done`, and one wave with `needs`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from benchmarks import harness
from benchmarks.harness import Scale, Spread, Table, Trial, Work, milliseconds, plain, quartiles
from benchmarks.work import RESULT_CHARS, Counter, CountingModel, begin
from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent

_CALL_S = 0.05
_REPLY_S = 0.2
_GO: dict[str, Any] = {"messages": [HumanMessage("go")]}
_AIMS = {100: "≤ 0.40", 500: "≤ 0.25"}


async def _look_up(key: str) -> str:
    await asyncio.sleep(_CALL_S)
    return f"the value of {key}".ljust(RESULT_CHARS, ".")


_lookup = StructuredTool.from_function(
    coroutine=_look_up, name="lookup", description="Look a key up.", metadata={"effect": "read"}
)


class OneWaveModel(CountingModel):
    """Replies with one message, then with text."""

    first: AIMessage

    def reply_at(self, at: int, counter: Counter) -> AIMessage:
        """Return the message, or text."""
        return self.first if at == 0 else AIMessage("Done.")


def plan(*calls: dict[str, Any], status: str) -> str:
    """Return a structured plan."""
    return json.dumps({"status": status, "tools": list(calls)})


def _native(calls: int) -> AIMessage:
    asked = [{"id": f"c{i}", "name": "lookup", "args": {"key": f"k{i}"}} for i in range(calls)]
    return AIMessage("", tool_calls=asked)


def _structured(calls: int) -> AIMessage:
    return AIMessage(
        plan(*({"id": f"c{i}", "tool": "lookup", "args": {"key": f"k{i}"}} for i in range(calls)), status="done")
    )


def _counted(run: Callable[[], Awaitable[Any]]) -> Work:
    async def work() -> Any:
        begin(1)
        return await run()

    return work


def _ours(first: AIMessage, config: LoopConfig) -> Work:
    graph = create_graph_agent(OneWaveModel(first=first), tools=[_lookup], config=config)
    return _counted(lambda: graph.ainvoke(_GO))


def one_wave(calls: int, tools: Sequence[BaseTool], saver: BaseCheckpointSaver[Any] | None) -> Work:
    """Return the run of one wave whose calls all run at once.

    Args:
        tools: The first one is called with a `key`.
        saver: Stores the run; None for no checkpoints.
    """
    asked = [{"id": f"c{i}", "name": tools[0].name, "args": {"key": f"k{i}"}} for i in range(calls)]
    config = LoopConfig(max_calls_per_wave=calls, max_parallel_calls=calls)
    model = OneWaveModel(first=AIMessage("", tool_calls=asked))
    graph = create_graph_agent(model, tools=tools, config=config, checkpointer=saver)
    return _counted(lambda: graph.ainvoke(_GO, {"configurable": {"thread_id": "s"}}))


def _create_agent(calls: int) -> Work:
    graph: Any = create_agent(OneWaveModel(first=_native(calls)), tools=[_lookup])
    return _counted(lambda: graph.ainvoke(_GO))


def _tool_node(calls: int) -> Work:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([_lookup]))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    compiled = graph.compile()
    return lambda: compiled.ainvoke({"messages": [_native(calls)]})


def _gather(calls: int) -> Work:
    async def run() -> list[Any]:
        asked = _native(calls).tool_calls
        return list(await asyncio.gather(*(_lookup.ainvoke(call["args"]) for call in asked)))

    return run


def _trials(calls: int) -> dict[str, Trial]:
    native = LoopConfig(max_calls_per_wave=calls, max_parallel_calls=calls)
    structured = LoopConfig(tool_calling="wave", max_calls_per_wave=calls, max_parallel_calls=calls)
    return {
        "create_agent": plain(lambda: _create_agent(calls)),
        "native calls": plain(lambda: _ours(_native(calls), native)),
        "structured plan": plain(lambda: _ours(_structured(calls), structured)),
        "reference: `ToolNode` alone": plain(lambda: _tool_node(calls)),
        "reference: `asyncio.gather`": plain(lambda: _gather(calls)),
    }


async def overhead(scale: Scale) -> Table:
    """Compare the time of one wave beyond the ideal."""
    rows: list[list[str]] = []
    for nominal, aim in _AIMS.items():
        costs = await harness.interleaved(_trials(scale.size(nominal)), scale)
        theirs = costs["create_agent"]
        for name, mine in costs.items():
            ratio = Spread.of([(a.wall - _CALL_S) / (b.wall - _CALL_S) for a, b in zip(mine, theirs, strict=True)])
            cpu = harness.cpu_ratio(costs, name, "create_agent")
            rows.append(
                [
                    f"{nominal} calls, {name}",
                    f"{ratio.median:.2f}",
                    quartiles(ratio),
                    f"{cpu.median:.2f}",
                    aim if name == "native calls" else "",
                    milliseconds(statistics.median(cost.wall - _CALL_S for cost in mine)),
                ]
            )
    columns = ["work", "overhead ratio", "quartiles", "CPU ratio", "aim", "overhead"]
    return Table("A wave of calls of 50 ms", "Wall time beyond 50 ms; ratios to `create_agent`.", columns, rows)


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
    "one wave with needs": [plan(_DATES, _ROOMS_BY_NEED, status="done")],
}


def _two_levels(script: list[str]) -> Work:
    model = SlowModel(responses=[*script, "Done."], latency_s=_REPLY_S)
    graph = create_graph_agent(model, tools=[dates, rooms], config=LoopConfig(tool_calling="wave"))

    async def run() -> None:
        await graph.ainvoke(_GO)
        model.assert_spent()

    return run


async def needs(scale: Scale) -> Table:
    """Compare a question of two levels in three plans."""
    trials = {name: plain(functools.partial(_two_levels, script)) for name, script in TWO_LEVELS.items()}
    costs = await harness.interleaved(trials, scale)
    rows = [
        [
            name,
            str(len(script) + 1),
            milliseconds(statistics.median(cost.wall for cost in costs[name])),
            f"{harness.wall_ratio(costs, name, 'two waves').median:.2f}",
        ]
        for name, script in TWO_LEVELS.items()
    ]
    note = "Wall time of one question whose second call needs the result of the first; a reply takes 200 ms."
    return Table("Needs within a wave", note, ["plan", "model calls", "time", "ratio"], rows)


async def tables(scale: Scale) -> list[Table]:
    """Run both comparisons."""
    return [await overhead(scale), await needs(scale)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
