"""The record of the runs of `make attack`, and the page written from it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.attack.oracle import Violation
from tests.attack.reliability import Run, record
from tests.attack.report import Row


def run(seed: int, kills: int, *, version: str = "1.0", scale: int = 2, failed: tuple[str, ...] = ()) -> Run:
    """A run of one attack, with so many kills and three times as many turns."""
    figures = Counter({"kills": kills, "turns": 3 * kills, "acknowledged": kills, "effects": kills})
    return Run(seed, scale, version, f"2026-11-2{seed}", "3.11.2", "2 cores", [Row("workers", figures)], failed=failed)


def tables(page: Path) -> list[str]:
    """The rows of the page's tables, without their headers."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    return [line for at, line in enumerate(lines) if "---" not in line and "---" not in "".join(lines[at + 1 : at + 2])]


def test_the_page_adds_up_the_runs_of_one_version(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "reliability.md"
    for each in (run(3, 1000), run(1, 5, version="0.9"), run(2, 500, scale=7)):
        record(page, each)

    assert tables(page) == [
        "| processes killed | 1,500 |",
        "| workers | 1,500 | 4,500 | 1,500 | 1,500 | 0 | 0 | 0 |",
        "| 2026-11-22 | 7 | 2 | all | 500 | 0 | 0 |",
        "| 2026-11-23 | 2 | 3 | all | 1,000 | 0 | 0 |",
    ]


def test_a_repeated_seed_replaces_the_record_of_its_version(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    for each in (run(1, 5, version="0.9"), run(1, 10), run(2, 20), run(1, 30)):
        record(page, each)

    stored = json.loads(page.with_suffix(".json").read_text())
    assert [(each["version"], each["seed"], each["rows"][0]["figures"]["kills"]) for each in stored] == [
        ("0.9", 1, 5),
        ("1.0", 1, 30),
        ("1.0", 2, 20),
    ]


def test_violations_and_failures_of_other_kinds_are_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    attack = Row("workers", Counter(kills=1), [Violation("lost", "s1: turn 3")])
    record(page, Run(1, 1, "1.0", "2026-11-24", "3.11.2", "2 cores", [attack], failed=["test_a", "test_b"]))
    record(page, run(2, 1, failed=("test_c",)))

    assert (tables(page)[1:], "2 attacks ended with another error" in page.read_text()) == (
        [
            "| workers | 2 | 3 | 1 | 1 | 1 | 0 | 0 |",
            "| 2026-11-24 | 1 | 1 | all | 1 | 1 | 1 |",
            "| 2026-11-22 | 2 | 2 | all | 1 | 0 | 1 |",
        ],
        True,
    )


def test_chosen_attacks_replace_only_themselves_in_the_run_of_their_seed(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    rows = [
        Row("clocks", Counter(skewed=7)),
        Row("workers", Counter(kills=1, turns=1), [Violation("lost", "s1: turn 3")]),
    ]
    record(page, Run(1, 2, "1.0", "2026-11-23", "3.11.2", "2 cores", rows, "", ["test_workers"], ["test_clocks"]))
    again = Row("workers", Counter(kills=2, turns=2))
    record(page, Run(1, 2, "1.0", "2026-11-24", "3.11.2", "2 cores", [again], "workers", [], ["test_workers"]))

    assert tables(page)[2:] == [
        "| clocks | 7 |  |  |  | 0 | 0 | 0 |",
        "| workers | 2 | 2 | 0 | 0 | 0 | 0 | 0 |",
        "| 2026-11-24 | 2 | 1 | all | 9 | 0 | 0 |",
    ]
