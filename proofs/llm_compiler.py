"""Predicts the latencies of LLMCompiler's paper with this executor: `python -m proofs.llm_compiler`.

The figures are those of "An LLM Compiler for Parallel Function Calling" (Kim et al., ICML 2024, arXiv:2312.04511v3),
with the paper's GPT models: latencies of its Table 1, output tokens of its Table 2, and for LLMCompiler the latencies
of its Table C.1, which has them without and with a streamed planner; the latter are those of Table 1, too. The executor
reads plans whole (`dispatch="whole"`) for the former, and while they stream (`dispatch="streamed"`) for the latter.

The figures were compared on 2026-11-29 with reading notes on that version of the paper which quote its tables. They
lack one: the latency of OpenAI's parallel function calling in ParallelQA, which therefore has no row.

Two delays are fitted to the rows of ReAct alone: seconds for a token of a reply, and seconds for a call with the
request that asks for it. The other rows are then predicted: the same calls run in an agent, with one plan whose calls
have `needs`, and level by level without them, on a virtual clock (`proofs/virtual_clock.py`).

ParallelQA has questions of several shapes and another model (gpt-4-turbo). Its calls are taken to be those of Fig.
3(c): four searches, two sums, one comparison; with one row, its call is taken to be as long as that of gpt-3.5-turbo.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import HumanMessage

from benchmarks.harness import Table
from graph_agent import LoopConfig, create_graph_agent
from graph_agent.base.settings.config import Dispatch
from graph_agent.marks import marked
from proofs.virtual_clock import TimedModel, run_virtually

Levels = Sequence[int]
"""Calls of each level; a level needs the one before."""


@dataclass(frozen=True)
class Row:
    """A published row: latency in seconds, and output tokens of all replies."""

    latency_s: float
    tokens: int


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the paper."""

    name: str
    levels: Levels
    react: Row
    """Table 1, of ReAct with the prompt against repetitions where it has two rows; tokens of Table 2, of ReAct without
    that prompt."""
    planned: Row
    """LLMCompiler: Table C.1 without streaming; tokens of Table 2."""
    streamed: Row
    """LLMCompiler with its streamed planner: Tables 1, C.1 and 2."""
    parallel: Row | None
    """OpenAI's parallel function calling: Tables 1 and 2; None if its latency is unknown."""


HOTPOT = Benchmark("HotpotQA", (2,), Row(7.12, 120), Row(4.00, 80), Row(3.95, 80), Row(4.42, 63))
MOVIES = Benchmark("Movie Recommendation", (8,), Row(20.47, 230), Row(5.64, 115), Row(5.47, 115), Row(7.42, 160))
PARALLEL = Benchmark("ParallelQA", (4, 2, 1), Row(35.90, 470), Row(21.72, 340), Row(16.69, 340), None)


@dataclass(frozen=True)
class Delays:
    """The fitted delays, in seconds."""

    token_s: float
    call_s: float


def fit() -> dict[str, Delays]:
    """Return the delays of each benchmark, from the rows of ReAct, where every reply and call waits for the one before.

    The two benchmarks with gpt-3.5-turbo give two equations: latency = tokens × token_s + calls × call_s.
    """
    one, other = HOTPOT, MOVIES
    calls, others = sum(one.levels), sum(other.levels)
    determinant = one.react.tokens * others - other.react.tokens * calls
    token_s = (one.react.latency_s * others - other.react.latency_s * calls) / determinant
    call_s = (one.react.latency_s - one.react.tokens * token_s) / calls
    known = Delays(token_s, call_s)
    rest = PARALLEL.react.latency_s - sum(PARALLEL.levels) * call_s
    return {one.name: known, other.name: known, PARALLEL.name: Delays(rest / PARALLEL.react.tokens, call_s)}


def _calls(levels: Levels) -> list[list[dict[str, Any]]]:
    waves: list[list[dict[str, Any]]] = []
    for level, count in enumerate(levels):
        needs = [call["id"] for call in waves[-1]] if waves else []
        waves.append([{"id": f"c{level}_{at}", "tool": "look_up", "needs": needs} for at in range(count)])
    return waves


def _native(call: dict[str, Any]) -> dict[str, Any]:
    return {"id": call["id"], "name": "look_up", "arguments": {"key": call["id"]}}


async def latency(
    replies: Sequence[Any], tokens: int, delays: Delays, *, plans: bool = False, dispatch: Dispatch = "whole"
) -> float:
    """Return the seconds of the loop's clock that an agent takes for a script.

    Args:
        replies: The script; all replies take the same time.
        tokens: Tokens of all its replies.
        delays: The fitted delays.
        plans: Whether the replies are structured plans.
        dispatch: When a call may begin.
    """
    reply_s = tokens * delays.token_s / len(replies)

    async def look_up(key: str) -> str:
        """Look a key up."""
        await asyncio.sleep(delays.call_s)
        return key

    tools = [marked(look_up, effect="read")]
    config = LoopConfig(max_steps=len(replies) + 1, tool_calling="wave" if plans else "native", dispatch=dispatch)
    agent = create_graph_agent(TimedModel(replies, lambda _: reply_s), tools=tools, config=config)
    loop = asyncio.get_running_loop()
    began = loop.time()
    state = await agent.ainvoke({"messages": [HumanMessage("Go.")]})
    assert state["status"] == "COMPLETED", state
    return loop.time() - began


def simulate(benchmark: Benchmark, delays: Delays) -> list[float]:
    """Return the seconds of ReAct, of one plan with `needs`, of the same while it streams, and, if its latency is
    published, of a plan for each level without `needs`."""
    waves = _calls(benchmark.levels)
    tools = [{**call, "args": {"key": call["id"]}} for wave in waves for call in wave]
    react = [*([_native(call)] for wave in waves for call in wave), "Done."]
    planned = [json.dumps({"status": "done", "tools": tools}), "Done."]
    streamed = [json.dumps({"tools": tools, "status": "done"}), "Done."]
    parallel = [*([_native(call) for call in wave] for wave in waves), "Done."]
    found = [
        run_virtually(latency(react, benchmark.react.tokens, delays)),
        run_virtually(latency(planned, benchmark.planned.tokens, delays, plans=True)),
        run_virtually(latency(streamed, benchmark.streamed.tokens, delays, plans=True, dispatch="streamed")),
    ]
    if benchmark.parallel is not None:
        found.append(run_virtually(latency(parallel, benchmark.parallel.tokens, delays)))
    return found


def table() -> Table:
    """Return published and simulated latencies."""
    rows: list[list[str]] = []
    for benchmark in (HOTPOT, MOVIES, PARALLEL):
        delays = fit()[benchmark.name]
        rows_of = (benchmark.react, benchmark.planned, benchmark.streamed, benchmark.parallel)
        published = [row for row in rows_of if row is not None]
        react, *_ = simulated = simulate(benchmark, delays)
        names = (
            "ReAct (fitted)",
            "LLMCompiler: one plan, `needs`",
            "LLMCompiler, streamed planner",
            "OpenAI parallel: a plan for each level",
        )
        for name, row, seconds in zip(names[: len(published)], published, simulated, strict=True):
            speedups = f"{published[0].latency_s / row.latency_s:.2f}", f"{react / seconds:.2f}"
            error = f"{seconds / row.latency_s - 1:+.0%}"
            rows.append([benchmark.name, name, f"{row.latency_s:.2f}", f"{seconds:.2f}", error, *speedups])
    fitted, newer = fit()[HOTPOT.name], fit()[PARALLEL.name]
    return Table(
        "LLMCompiler's latencies by simulation",
        f"Fitted to ReAct's rows: {fitted.call_s:.2f} s a call, {fitted.token_s * 1000:.1f} ms a token of GPT-3.5, "
        f"{newer.token_s * 1000:.1f} ms a token of GPT-4 (ParallelQA).",
        ["benchmark", "method", "published s", "simulated s", "error", "published speedup", "simulated speedup"],
        rows,
    )


def main() -> None:
    """Print the table."""
    found = table()
    print(f"{found.title}\n\n{found.note}\n\n{found.markdown()}")


if __name__ == "__main__":
    main()
