"""Capacity is computed from the measured figures, and the page on scale shows it."""

from __future__ import annotations

import pytest

from benchmarks.capacity import (
    PAGE,
    RESULTS,
    Measured,
    capacity,
    read_measured,
    read_table,
    recovery_of_restate,
    table,
    with_parts,
    written,
)

MEASURED = Measured(checkpoints_per_s=250, turns_per_s=100, kb_per_turn=3.8, server_cpu_s=0.03, server_kb=200_000)


def test_the_page_shows_the_figures_of_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page == written(page), "run `python -m benchmarks.capacity --write`"


def test_capacity_grows_with_the_databases() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(MEASURED).splitlines()]

    assert [row for row in rows if row[0] != "---"] == [
        ["databases", "1", "2", "4", "8"],
        ["turns a second", "100", "200", "400", "800"],
        ["checkpoints a second", "250", "500", "1,000", "2,000"],
        ["active sessions", "3,000", "6,000", "12,000", "24,000"],
        # 100 turns × 86,400 seconds × 5 KB
        ["GB a day, at this rate all day", "43", "86", "170", "350"],
        # 100 GB / (20 turns × 5 KB)
        ["stored sessions", "1,000,000", "2,000,000", "4,000,000", "8,000,000"],
        # 100 requests × 0.03 s of CPU: 3 workers
        ["machines with servers", "2", "3", "6", "12"],
        ["memory of their workers", "600 MB", "1,200 MB", "2,400 MB", "4,800 MB"],
    ]


def test_figures_are_read_from_the_best_row_of_the_own_saver() -> None:
    page = RESULTS.read_text(encoding="utf-8")
    rows = read_table(page, "PostgreSQL: throughput")
    best = max(float(row["checkpoints/s"]) for row in rows if "own saver" in row["work"])

    assert (read_measured(page).checkpoints_per_s, f"{best:g} checkpoints" in capacity(read_measured(page))) == (
        best,
        True,
    )


def test_a_guide_without_times_is_refused() -> None:
    with pytest.raises(ValueError, match="no table of measured times"):
        recovery_of_restate("## Measured\n\nNothing.\n")


@pytest.mark.parametrize("page", ["", "## PostgreSQL: throughput\n\nA note.\n\n| work |\n| --- |\n| a |\n"])
def test_results_without_a_figure_are_refused(page: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        read_measured(page)


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks for its part 'capacity'"):
        with_parts("<!-- capacity -->\n", {"capacity": "x"})
