"""The page of all recorded runs of `make attack`, and the record of them in a JSON file with its name."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter

from tests.attack.oracle import Harm
from tests.attack.report import FAULTS, SCALE, SEED, Row, merge

_HARMS: tuple[Harm, ...] = ("lost", "repeated", "invented")
_TURNS = ("turns", "acknowledged", "effects")
_PAGE = """# Reliability

`make attack` writes this page: what was done to running sessions, and what was lost, repeated or invented.

{total:,} faults, {acknowledged:,} acknowledged turns, {effects:,} effects of tools: **{harms}**.

graph-agent {version}; {runs} from {first} to {last}; Python {pythons}; {machines}.
{unfinished}
## What was tried

| fault | times |
|---|---|
{faults}

## Attacks

| attack | faults | turns | acknowledged | effects | lost | repeated | invented |
|---|---|---|---|---|---|---|---|
{attacks}

`acknowledged` are turns whose answer a client received. `effects` are calls that a tool wrote to a file first.

- *Lost* is an acknowledged turn, or a call that took effect, that is not in the history.
- *Repeated* is a call that took effect twice, or an input that is in the history twice.
- *Invented* is the result of a call that had no effect, or the answer to another turn.

Attacks without turns send one input again after each fault, and compare its history and effects with those of a run
without faults.

## Found and fixed

- In 0.2.0, with seed 1 at scale 5, two of 233 turns on four machines were *invented*: a request sent again after a kill
  between the first two checkpoints of its input got the answer to the turn before, then its own. After the fix, the
  attack on machines was repeated; its counts above are those of the repetition, with more load and fewer turns.
  So few turns alone do not show the fix; a test in `tests/interfaces/server/test_idempotency.py` kills at that place.

## Repeat it

| date | scale | seed | attacks | faults | violations | unfinished |
|---|---|---|---|---|---|---|
{repeats}

<!-- not run: takes an hour -->
```console
make attack SCALE={scale} SEED={seed} REPORT=docs/reliability.md
```

A run replaces the recorded run of its seed; the record is `reliability.json`, in the same folder. `ATTACK=two_workers`
chooses attacks by a part of the name of their test, and replaces only these. The seed decides all random choices; the
moment at which a signal arrives depends on the machine. An attack is unfinished if its test failed with another error
than a violation.
"""


@dataclass(frozen=True)
class Run:
    """One recorded run of `make attack`."""

    seed: int
    scale: int
    version: str
    """Version of the package."""
    date: str
    """Day of its end, ISO 8601, UTC."""
    python: str
    machine: str
    rows: Sequence[Row]
    chosen: str = ""
    """The `-k` expression that chose the attacks; empty for all."""
    failed: Sequence[str] = ()
    """Node ids of the tests that failed."""
    tests: Sequence[str] = ()
    """Node ids of all its tests."""

    @property
    def faults(self) -> int:
        """The number of faults."""
        return sum(row.faults for row in self.rows)

    @property
    def violations(self) -> int:
        """The number of violations."""
        return sum(len(row.found) for row in self.rows)

    @property
    def unfinished(self) -> int:
        """The number of tests that failed and cannot be explained by a violation."""
        return max(0, len(self.failed) - self.violations)


_RUNS = TypeAdapter(list[Run])


def run_of(rows: Sequence[Row], tests: Sequence[str], failed: Sequence[str], chosen: str) -> Run:
    """Return the run of this process.

    Args:
        rows: The attacks; their notes are not recorded.
        tests: Node ids of the tests.
        failed: Node ids of those that failed.
        chosen: The `-k` expression that chose the tests.
    """
    return Run(
        seed=SEED,
        scale=SCALE,
        version=version("graph-agent"),
        date=datetime.now(UTC).date().isoformat(),
        python=platform.python_version(),
        machine=f"{os.cpu_count()} cores, {platform.system()}",
        rows=[replace(row, notes=[]) for row in rows],
        chosen=chosen,
        failed=failed,
        tests=sorted({*tests}),
    )


def record(page: Path, run: Run) -> None:
    """Add a run to the record of a page, and write the page from all runs of its version.

    A run replaces that of its seed; one of chosen attacks replaces these attacks only, if the scales are the same.
    """
    file = page.with_suffix(".json")
    stored = _RUNS.validate_json(file.read_bytes()) if file.exists() else []
    before = [each for each in stored if (each.version, each.seed, each.scale) == (run.version, run.seed, run.scale)]
    if before and run.chosen:
        run = _joined(before[0], run)
    others = [each for each in stored if (each.version, each.seed) != (run.version, run.seed)]
    runs = sorted([*others, run], key=lambda each: (each.version, each.seed))
    page.parent.mkdir(parents=True, exist_ok=True)
    # A run that is killed here must not lose the hours before it.
    for target, text in (
        (file, _RUNS.dump_json(runs, indent=1).decode() + "\n"),
        (page, _text([each for each in runs if each.version == run.version])),
    ):
        partial = target.with_name(f"{target.name}.partial")
        partial.write_text(text)
        partial.replace(target)


def _joined(before: Run, run: Run) -> Run:
    """Return the record of a run of which some attacks were repeated."""
    names = {row.name for row in run.rows}
    return replace(
        run,
        rows=[*(row for row in before.rows if row.name not in names), *run.rows],
        chosen=before.chosen and f"{before.chosen} or {run.chosen}",
        tests=sorted({*before.tests, *run.tests}),
        failed=[*(each for each in before.failed if each not in run.tests), *run.failed],
    )


def _text(runs: Sequence[Run]) -> str:
    rows = merge(row for run in runs for row in run.rows)
    total = sum((row.figures for row in rows), Counter[str]())
    harms = sum((row.harms for row in rows), Counter[str]())
    unfinished = sum(run.unfinished for run in runs)
    longest = max(runs, key=lambda run: run.faults)
    return _PAGE.format(
        total=sum(row.faults for row in rows),
        acknowledged=total["acknowledged"],
        effects=total["effects"],
        harms=", ".join(f"{harms[harm]} {harm}" for harm in _HARMS),
        version=runs[0].version,
        runs=f"{len(runs)} run{'s' * (len(runs) > 1)}",
        first=min(run.date for run in runs),
        last=max(run.date for run in runs),
        pythons=", ".join(sorted({run.python for run in runs})),
        machines="; ".join(sorted({run.machine for run in runs})),
        unfinished=f"\n{unfinished} attacks ended with another error, and are counted as *unfinished* below.\n"
        if unfinished
        else "",
        faults="\n".join(f"| {words} | {total[name]:,} |" for name, words in FAULTS.items() if total[name]),
        attacks="\n".join(_attack(row) for row in rows),
        repeats="\n".join(_repeat(run) for run in runs),
        scale=longest.scale,
        seed=longest.seed,
    )


def _attack(row: Row) -> str:
    turns = " | ".join(f"{row.figures[name]:,}" if row.figures["turns"] else "" for name in _TURNS)
    return f"| {row.name} | {row.faults:,} | {turns} | {' | '.join(str(row.harms[harm]) for harm in _HARMS)} |"


def _repeat(run: Run) -> str:
    chosen = f"`{run.chosen}`" if run.chosen else "all"
    return (
        f"| {run.date} | {run.scale} | {run.seed} | {chosen} | {run.faults:,} | {run.violations} | {run.unfinished} |"
    )
