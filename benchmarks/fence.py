"""Cost of the checkpoint fence: `python -m benchmarks.fence`.

The same agent on the same saver, with the check of each write against the newest checkpoint and without it. Each plan
is stored before its call, as with a tool that writes. The time is this process's processor time, all threads included;
for PostgreSQL that is the client's side. Each round runs both variants, in an order that alternates; the figures are
medians over the rounds. `--rounds`, `--turns` and `--url` set the extent. Without `--url` the database is a new SQLite
file.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from langchain_core.messages import HumanMessage

from benchmarks.loop import Case, lookup
from graph_agent import LoopConfig, create_graph_agent
from graph_agent.persistence.open import open_saver


@contextmanager
def without_fence(module: str) -> Iterator[None]:
    """Disable the fence of a saver."""
    with mock.patch(f"graph_agent.{module}.fence_of", return_value=None):
        yield


async def seconds(turns: int, url: str) -> tuple[float, float]:
    """Processor and elapsed seconds of one run in a new session."""
    async with open_saver(url) as saver:
        case = Case(turns, None)
        model = case.model("No more actions.", "Done.")
        graph = create_graph_agent(model, tools=[lookup], config=LoopConfig(max_steps=turns + 1), checkpointer=saver)
        config = case.config()
        config["configurable"]["thread_id"] = uuid.uuid4().hex
        await graph.aget_state(config)
        gc.collect()
        cpu, begun = time.process_time(), time.perf_counter()
        await graph.ainvoke({"messages": [HumanMessage("go")]}, config, durability="sync")
        return time.process_time() - cpu, time.perf_counter() - begun


def compare(turns: int, url: str, rounds: int) -> None:
    """Time both variants in turn, and print one line."""
    module = "postgres_saver" if url else "sqlite_saver"
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(rounds):
        for fenced in (True, False) if number % 2 else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                at = url or f"sqlite:///{Path(folder) / 'bench.db'}"
                if fenced:
                    taken[fenced].append(asyncio.run(seconds(turns, at)))
                else:
                    with without_fence(module):
                        taken[fenced].append(asyncio.run(seconds(turns, at)))
    fields = [f"{'postgres' if url else 'sqlite':9} {turns:6}"]
    for which in (0, 1):
        pairs = [(with_[which], without[which]) for with_, without in zip(taken[True], taken[False], strict=True)]
        per_turn = [1000 * statistics.median(side) / turns for side in zip(*pairs, strict=True)]
        ratio = statistics.median(with_ / without for with_, without in pairs)
        fields += [f"{per_turn[1]:9.3f} {per_turn[0]:9.3f} {ratio:9.3f}"]
    print(" ".join(fields), flush=True)


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description="What the fence of checkpoints costs.")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--turns", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--url", default="", help="a PostgreSQL database")
    options = parser.parse_args()
    print(f"{'saver':9} {'turns':>6} {'CPU: off':>9} {'fence':>9} {'ratio':>9} {'s: off':>9} {'fence':>9} {'ratio':>9}")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(seconds(2, options.url or f"sqlite:///{Path(folder) / 'bench.db'}"))
    for turns in options.turns:
        compare(turns, options.url, options.rounds)


if __name__ == "__main__":
    main()
