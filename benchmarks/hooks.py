"""Cost of hooks per turn of the loop: `python -m benchmarks.hooks`.

The loop without hooks, with one that looks at the reply alone, and with one that reads every message and tool of the
request, which are copied for it. Each round runs them one after the other; the ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from typing import Any

from benchmarks.loop import Case, lookup
from graph_agent import LoopConfig, LoopHook, create_graph_agent
from graph_agent.hooks.protocol import HookRequest, HookResponse


class Looks(LoopHook):
    """Looks at the reply."""

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        """Never act."""
        return len(response.calls) > 1, None


class Reads(LoopHook):
    """Reads the whole request."""

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        """Never act."""
        return not request.messages or not request.tools, None


AGENTS: dict[str, tuple[LoopHook, ...]] = {"no hook": (), "looks": (Looks(),), "reads all": (Reads(),)}


async def measure(hooks: tuple[LoopHook, ...], turns: int) -> float:
    """Seconds for one run."""
    case = Case(turns, None)
    graph = create_graph_agent(
        case.model("No more actions.", "Done."), tools=[lookup], hooks=hooks, config=LoopConfig(max_steps=turns + 1)
    )
    gc.collect()
    begun = time.perf_counter()
    await graph.ainvoke({"messages": [("user", "go")]}, case.config())
    return time.perf_counter() - begun


async def compare(turns: int, rounds: int) -> None:
    """Time them in turn, and print one line each."""
    seconds: dict[str, list[float]] = {name: [] for name in AGENTS}
    for _ in range(rounds):
        for name, hooks in AGENTS.items():
            seconds[name].append(await measure(hooks, turns))
    for name, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(taken, seconds["no hook"], strict=True))
        print(f"{turns:6} {name:10} {1000 * statistics.median(taken) / turns:9.3f} {ratio:9.2f}")


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description="What hooks cost a turn.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 50])
    options = parser.parse_args()
    print(f"{'turns':>6} {'':10} {'ms/turn':>9} {'ratio':>9}")
    asyncio.run(measure((), 2))
    for turns in options.turns:
        asyncio.run(compare(turns, options.rounds))


if __name__ == "__main__":
    main()
