"""The shared harness of all benchmarks: interleaved trials, CPU and wall time, ratios with their spread, and tables.

A comparison runs its variants one after the other in every round, and the order rotates, so that a machine whose speed
drifts or which other processes use affects all variants alike. A ratio is computed round by round; its median and
quartiles are printed. CPU time is that of this process, all threads included, and depends less on other processes than
wall time does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Work = Callable[[], Awaitable[Any]]
"""The measured part of a trial."""
Trial = Callable[[], AbstractAsyncContextManager[Work]]
"""Prepares a run, yields its measured part, and cleans up; preparation and clean-up are not measured."""

_MOST_ROUNDS = 15
_FEWEST_ROUNDS = 3
_TINY_SIZE = 3


@dataclass(frozen=True)
class Scale:
    """The extent of a run of benchmarks."""

    seconds: float = 12.0
    """Time for one comparison, in seconds; at least three rounds are run, and at most 15."""
    tiny: bool = False
    """Whether to run each trial once at its smallest size, to check that it works; labels keep the full size."""
    url: str = ""
    """Database of this package's own saver, as for `open_saver`; empty for a new SQLite file in each trial."""

    def size(self, size: int) -> int:
        """Return the size to run for a nominal size."""
        return min(size, _TINY_SIZE) if self.tiny else size

    def more(self, rounds: int, since: float) -> bool:
        """Whether to run another round, after `rounds` rounds that began at `since` on the monotonic clock."""
        if self.tiny:
            return rounds < 1
        if rounds < _FEWEST_ROUNDS:
            return True
        used = time.monotonic() - since
        return rounds < _MOST_ROUNDS and used * (rounds + 1) / rounds <= self.seconds


@dataclass(frozen=True)
class Cost:
    """The time of one trial, in seconds."""

    cpu: float
    wall: float


Costs = Mapping[str, Sequence[Cost]]
"""Variant → its cost in each round."""


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of some figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise one or more figures."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Table:
    """A table of figures, each formatted."""

    title: str
    note: str
    """What was run, in a sentence or two."""
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Return the table as Markdown, with aligned columns."""
        grid = [self.columns, *self.rows]
        widths = [max(len(row[at]) for row in grid) for at in range(len(self.columns))]
        lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in grid]
        rule = " | ".join("-" * width for width in widths)
        return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


RATIO_COLUMNS = ["work", "CPU ratio", "quartiles", "wall ratio", "aim", "CPU"]


async def once(trial: Trial, *, tiny: bool = False) -> Cost:
    """Run one trial and return its cost."""
    async with trial() as work:
        if not tiny:
            gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        await work()
        return Cost(time.process_time() - cpu, time.perf_counter() - wall)


async def interleaved(trials: Mapping[str, Trial], scale: Scale) -> dict[str, list[Cost]]:
    """Run all trials in turn, in rounds whose order rotates, and return the cost of each in each round."""
    costs: dict[str, list[Cost]] = {name: [] for name in trials}
    names = list(trials)
    if not scale.tiny:
        for name in names:
            await once(trials[name])  # the first run of anything pays for its imports
    since, rounds = time.monotonic(), 0
    while scale.more(rounds, since):
        for at in range(len(names)):
            name = names[(at + rounds) % len(names)]
            costs[name].append(await once(trials[name], tiny=scale.tiny))
        rounds += 1
    return costs


def cpu_ratio(costs: Costs, variant: str, reference: str, factor: float = 1.0) -> Spread:
    """Return the ratio of CPU times, times `factor`."""
    return Spread.of([factor * a.cpu / b.cpu for a, b in zip(costs[variant], costs[reference], strict=True)])


def wall_ratio(costs: Costs, variant: str, reference: str) -> Spread:
    """Return the ratio of wall times."""
    return Spread.of([a.wall / b.wall for a, b in zip(costs[variant], costs[reference], strict=True)])


def ratio_row(
    label: str, costs: Costs, variant: str, reference: str, *, aim: str = "", per: int = 1, unit: str = "turn"
) -> list[str]:
    """Format a row of `RATIO_COLUMNS`.

    Args:
        label: The work.
        costs: The costs of the comparison.
        variant: The variant of the row.
        reference: The variant that counts as 1.
        aim: The aim for the CPU ratio, e.g. `≤ 0.75`; empty if there is none.
        per: Units of work in one trial.
        unit: Name of the unit.
    """
    cpu, wall = cpu_ratio(costs, variant, reference), wall_ratio(costs, variant, reference)
    each = statistics.median(cost.cpu for cost in costs[variant]) / per
    return [label, f"{cpu.median:.2f}", quartiles(cpu), f"{wall.median:.2f}", aim, f"{milliseconds(each)} / {unit}"]


def quartiles(spread: Spread, digits: int = 2) -> str:
    """Format the quartiles of a figure."""
    return f"{spread.low:.{digits}f}–{spread.high:.{digits}f}"


def milliseconds(seconds: float) -> str:
    """Format a time."""
    return f"{1000 * seconds:.2f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.1f} µs"


def plain(prepare: Callable[[], Work]) -> Trial:
    """Return a trial whose preparation needs no clean-up."""

    @asynccontextmanager
    async def trial() -> AsyncIterator[Work]:
        yield prepare()

    return trial


def main(tables: Callable[[Scale], Awaitable[list[Table]]], description: str | None) -> None:
    """Read the command line of a benchmark module, run it, and print its tables."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=Scale.seconds, help="time for one comparison")
    parser.add_argument("--tiny", action="store_true", help="run everything once at its smallest size")
    parser.add_argument("--url", default="", help="database of the own saver, e.g. postgresql://…; a new file if unset")
    parser.add_argument("--json", type=Path, help="also write the tables to this file")
    given = parser.parse_args()
    made = asyncio.run(_run(tables, Scale(given.seconds, given.tiny, given.url)))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(table) for table in made]), encoding="utf-8")


async def _run(tables: Callable[[Scale], Awaitable[list[Table]]], scale: Scale) -> list[Table]:
    made = await tables(scale)
    for table in made:
        print(f"{table.title}\n{table.note}\n\n{table.markdown()}\n", flush=True)
    return made
