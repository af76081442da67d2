"""The figures of the attacks of a test session, for its summary and for the page of all recorded runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.attack.oracle import Violation

SCALE = int(os.environ.get("TEST_ATTACK_SCALE", "1"))
"""How many times as long as in continuous integration an attack lasts."""
SEED = int(os.environ.get("TEST_ATTACK_SEED", "1"))
"""Seed of all random choices; each attack adds its name."""
FILE = os.environ.get("TEST_ATTACK_REPORT", "")
"""Where the page is written; empty for nowhere."""

FAULTS = {
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


@dataclass
class Row:
    """What one attack did, and found."""

    name: str
    figures: Counter[str]
    """Counts of `FAULTS`, `turns`, `acknowledged` and `effects`; others are shown in the summary only."""
    found: Sequence[Violation] = ()
    notes: list[str] = field(default_factory=list)
    """Further words for the summary."""

    @property
    def faults(self) -> int:
        """The number of faults."""
        return sum(self.figures[name] for name in FAULTS)

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
        fault: A key of `FAULTS`.
        found: What it violated.
    """
    harm = [Violation("lost", each) for each in found]
    ROWS.append(Row(name, Counter({fault: times}), harm))


def merge(each: Iterable[Row]) -> list[Row]:
    """Join the rows of one name to one."""
    rows: dict[str, Row] = {}
    for row in each:
        at = rows.setdefault(row.name, Row(row.name, Counter()))
        at.figures.update(row.figures)
        at.found = [*at.found, *row.found]
        at.notes += row.notes
    return list(rows.values())


def in_words(figures: Counter[str]) -> Iterator[str]:
    """Each figure with its name."""
    return (f"{count} {name}" for name, count in figures.items() if count)
