"""The figures of the attacks of a test session, and the page that `REPORT=FILE` writes from them."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.attack.oracle import Harm, Violation

SCALE = int(os.environ.get("GRAPH_AGENT_ATTACK_SCALE", "1"))
"""How many times as long as in continuous integration an attack lasts."""
SEED = int(os.environ.get("GRAPH_AGENT_ATTACK_SEED", "1"))
"""Seed of all random choices; each attack adds its name."""
FILE = os.environ.get("GRAPH_AGENT_ATTACK_REPORT", "")
"""Where the page is written; empty for nowhere."""

_FAULTS = {
    "kills": "processes killed",
    "stops": "processes paused past their locks",
    "restarts": "database restarts",
    "cuts": "connections cut at a write",
    "errors": "writes that raised",
    "full disks": "disks filled",
    "races": "races of two workers for one session",
    "skewed": "turns on a skewed clock",
    "prunings": "prunings during a run",
}
"""Figure → what it counts."""
_HARMS: tuple[Harm, ...] = ("lost", "repeated", "invented")
_PAGE = """# Reliability

`make attack` writes this page: what was done to running sessions, and what was lost, repeated or invented.

{total:,} faults, {acknowledged:,} acknowledged turns, {effects:,} effects of tools: **{harms}**.

{date}, graph-agent {version}, Python {python}, {machine}; scale {scale}, seed {seed}.

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

## Repeat it

```console
make attack SCALE={scale} SEED={seed} REPORT=docs/reliability.md
```

`ATTACK=two_workers` chooses attacks by a part of the name of their test. The seed decides all random choices; the
moment at which a signal arrives depends on the machine.
"""


@dataclass
class Row:
    """What one attack did, and found."""

    name: str
    figures: Counter[str]
    """Counts of `_FAULTS`, `turns`, `acknowledged` and `effects`; others are shown in the summary only."""
    found: Sequence[Violation] = ()
    notes: list[str] = field(default_factory=list)
    """Further words for the summary."""

    @property
    def faults(self) -> int:
        """The number of faults."""
        return sum(self.figures[name] for name in _FAULTS)

    @property
    def harms(self) -> Counter[str]:
        """How often something was lost, repeated or invented."""
        return Counter(violation.harm for violation in self.found)

    def in_words(self) -> str:
        """The row as a line of the summary."""
        return f"{self.name}: {', '.join([*in_words(self.figures), *self.notes, f'{len(self.found)} violations'])}"


ROWS: list[Row] = []
"""The attacks of this test session."""


def note_faults(name: str, fault: str, times: int, found: Iterable[str] = ()) -> None:
    """Add an attack without turns: one fault, so many times.

    Args:
        name: Its name; rows of one name are added up.
        fault: A key of `_FAULTS`.
        found: What it violated.
    """
    harm = [Violation("lost", each) for each in found]
    ROWS.append(Row(name, Counter({fault: times}), harm))


def merged() -> list[Row]:
    """The rows, those of one name as one."""
    rows: dict[str, Row] = {}
    for row in ROWS:
        at = rows.setdefault(row.name, Row(row.name, Counter()))
        at.figures.update(row.figures)
        at.found = [*at.found, *row.found]
        at.notes += row.notes
    return list(rows.values())


def in_words(figures: Counter[str]) -> Iterator[str]:
    """Each figure with its name."""
    return (f"{count} {name}" for name, count in figures.items() if count)


def write(file: Path, rows: Sequence[Row]) -> None:
    """Write the page."""
    total = sum((row.figures for row in rows), Counter[str]())
    harms = sum((row.harms for row in rows), Counter[str]())
    faults = [f"| {words} | {total[name]:,} |" for name, words in _FAULTS.items() if total[name]]
    attacks = [
        f"| {row.name} | {row.faults:,} | "
        + " | ".join(f"{row.figures[name]:,}" if row.figures["turns"] else "" for name in _TURNS)
        + f" | {' | '.join(str(row.harms[harm]) for harm in _HARMS)} |"
        for row in rows
    ]
    page = _PAGE.format(
        total=sum(row.faults for row in rows),
        acknowledged=total["acknowledged"],
        effects=total["effects"],
        harms=", ".join(f"{harms[harm]} {harm}" for harm in _HARMS),
        date=datetime.now(UTC).date().isoformat(),
        version=version("graph-agent"),
        python=platform.python_version(),
        machine=f"{os.cpu_count()} cores, {platform.system()}",
        scale=SCALE,
        seed=SEED,
        faults="\n".join(faults),
        attacks="\n".join(attacks),
    )
    file.write_text(page)


_TURNS = ("turns", "acknowledged", "effects")
