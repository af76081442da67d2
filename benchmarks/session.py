"""Cost of a session's guards: `python -m benchmarks.session`.

The same agent with every guard off, and with a deadline, a token budget, the effect ledger, and a Store to be steered
and stopped through. Its tool only reads, so that both store their checkpoints alike. The time is the processor's, of
all threads: what the guards cost, and not what the disk or another program did meanwhile. The two run one after the
other in each round, and the figures are medians over the rounds. `--rounds` and `--turns` set how much is run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from benchmarks.loop import Case, lookup
from graph_agent import LoopConfig, create_graph_agent
from graph_agent.persistence.open import open_saver, open_store

GUARDS: dict[str, Any] = {"deadline_s": 3600, "max_tokens_total": 10**9, "effect_ledger": True}
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "off": ({}, False),
    "guards": (GUARDS, False),
    "store": ({}, True),
    "guards and store": (GUARDS, True),
}
"""Variant → fields of `LoopConfig`, and whether the agent has a Store."""


@asynccontextmanager
async def memory(url: str, *, store: bool) -> AsyncIterator[tuple[BaseCheckpointSaver[Any], Any]]:
    """A saver, and a store where one is wanted, both ready for use."""
    async with AsyncExitStack() as stack:
        saver = await stack.enter_async_context(open_saver(url))
        beside = await stack.enter_async_context(open_store(url)) if store else None
        for made in (saver, beside):
            if (set_up := getattr(made, "setup", None)) is not None and (waiting := set_up()) is not None:
                await waiting
        yield saver, beside


async def cpu_s(variant: str, turns: int, url: str) -> float:
    """Processor seconds of one run."""
    fields, with_store = VARIANTS[variant]
    async with memory(url, store=with_store) as (saver, store):
        case = Case(turns, None)
        model = case.model("No more actions.", "Done.")
        config = LoopConfig(max_steps=turns + 1, **fields)
        graph = create_graph_agent(model, tools=[lookup], config=config, checkpointer=saver, store=store)
        gc.collect()
        begun = time.process_time()
        await graph.ainvoke({"messages": [HumanMessage("go")]}, case.config())
        return time.process_time() - begun


async def compare(turns: int, *, sqlite: bool, rounds: int) -> None:
    """Time the variants in turn, and print one line each."""
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant in VARIANTS:
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{Path(folder) / 'bench.db'}" if sqlite else "memory:"
                seconds[variant].append(await cpu_s(variant, turns, url))
    for variant, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(taken, seconds["off"], strict=True))
        per_turn = 1000 * statistics.median(taken) / turns
        print(f"{'sqlite' if sqlite else 'memory':7} {turns:6} {variant:17} {per_turn:9.3f} {ratio:9.3f}")


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description="What the guards of a session cost.")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--turns", type=int, nargs="+", default=[50])
    options = parser.parse_args()
    print(f"{'saver':7} {'turns':>6} {'':17} {'ms/turn':>9} {'ratio':>9}")
    asyncio.run(cpu_s("guards and store", 2, "memory:"))
    for sqlite in (False, True):
        for turns in options.turns:
            asyncio.run(compare(turns, sqlite=sqlite, rounds=options.rounds))


if __name__ == "__main__":
    main()
