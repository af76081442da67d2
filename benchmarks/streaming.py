"""Cost of streamed answers, compared with `create_agent` and the model alone: `python -m benchmarks.streaming`.

The model streams one answer of 1,000 tokens and lets the event loop run before each. The graphs are read through
`astream(stream_mode="messages")`; the reference is the model's own `astream`. One more row reads the same through this
framework's `Session`.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks import harness
from benchmarks.harness import Scale, Spread, Table, Trial, Work, quartiles
from benchmarks.work import StreamingModel, begin, lookup_tool
from graph_agent import Session, create_graph_agent

_TOKENS = 1_000
_GO: dict[str, Any] = {"messages": [HumanMessage("go")]}

BARE = "reference: a graph whose node asks the model"

Stream = Callable[[], AsyncIterator[Any]]
"""Streams one answer; each item is a token."""


def _graph_stream(graph: Any) -> Stream:
    async def stream() -> AsyncIterator[Any]:
        async for message, _ in graph.astream(_GO, stream_mode="messages"):
            if message.content:
                yield message

    return stream


def _ours(model: StreamingModel) -> Stream:
    return _graph_stream(create_graph_agent(model, tools=[lookup_tool()]))


def _theirs(model: StreamingModel) -> Stream:
    return _graph_stream(create_agent(model, tools=[lookup_tool()]))


def _bare(model: StreamingModel) -> Stream:
    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return _graph_stream(graph.compile())


def _session(model: StreamingModel) -> Stream:
    graph = create_graph_agent(model, tools=[lookup_tool()], checkpointer=InMemorySaver())

    async def stream() -> AsyncIterator[Any]:
        async for part in Session(graph, "s").stream("go"):
            if part.type == "token":
                yield part

    return stream


def _model_alone(model: StreamingModel) -> Stream:
    async def stream() -> AsyncIterator[Any]:
        async for chunk in model.astream(_GO["messages"]):
            yield chunk

    return stream


_STREAMS: dict[str, Callable[[StreamingModel], Stream]] = {
    "`create_agent`": _theirs,
    "graph-agent": _ours,
    "graph-agent, through `Session.stream`": _session,
    BARE: _bare,
    "reference: LangChain's model alone": _model_alone,
}


async def tables(scale: Scale) -> list[Table]:
    """Run the comparison."""
    tokens = scale.size(_TOKENS)
    firsts: dict[str, list[float]] = {name: [] for name in _STREAMS}
    trials: dict[str, Trial] = {name: functools.partial(_trial, firsts[name], name, tokens) for name in _STREAMS}
    costs = await harness.interleaved(trials, scale)
    rows: list[list[str]] = []
    for name in _STREAMS:
        cpu = Spread.of([1e6 * cost.cpu / tokens for cost in costs[name]])
        rounds = len(costs[name])
        pairs = zip(firsts[name][-rounds:], firsts["`create_agent`"][-rounds:], strict=True)
        later = 1000 * statistics.median(mine - theirs for mine, theirs in pairs)
        ratio = harness.cpu_ratio(costs, name, "`create_agent`").median
        ours = name == "graph-agent"
        row = [name, f"{cpu.median:.1f} µs", quartiles(cpu, 1), "≤ 25 µs" if ours else "", f"{ratio:.2f}"]
        rows.append([*row, f"{later:+.2f} ms", "≤ 0" if ours else ""])
    columns = ["work", "CPU per token", "quartiles", "aim", "CPU ratio", "first token to `create_agent`'s", "aim"]
    return [
        Table(
            "Streamed answers",
            "One answer of 1,000 tokens; `Session` has a saver in memory, the others have none.",
            columns,
            rows,
        )
    ]


def stream_trial(agent: str, tokens: int) -> Trial:
    """Return a trial that reads one streamed answer of `graph-agent` or `create_agent`."""
    name = agent if agent in _STREAMS else f"`{agent}`"
    return functools.partial(_trial, [], name, tokens)


@asynccontextmanager
async def _trial(firsts: list[float], name: str, tokens: int) -> AsyncIterator[Work]:
    stream = _STREAMS[name](StreamingModel(tokens=tokens))

    async def run() -> None:
        begin(0)
        began, received = time.perf_counter(), 0
        async for _ in stream():
            if not received:
                firsts.append(time.perf_counter() - began)
            received += 1
        if received < tokens:
            raise SystemExit(f"{name} streamed {received} of {tokens} tokens.")

    yield run


if __name__ == "__main__":
    harness.main(tables, __doc__)
