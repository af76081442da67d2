"""The summary of the attacks at the end of a test session."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.attack import reliability, report

_TEST_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each attack the time that its scale needs."""
    for item in items:
        if item.get_closest_marker("attack"):
            item.add_marker(pytest.mark.timeout(_TEST_S * report.SCALE))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Print a line for each attack, and one line of totals; record the run if a page is asked for."""
    rows = report.merge(report.ROWS)
    if not rows:
        return
    terminalreporter.section("attacks")
    for row in rows:
        terminalreporter.write_line(row.in_words())
    total = report.Row(
        "attack", sum((row.figures for row in rows), Counter[str]()), [v for row in rows for v in row.found]
    )
    terminalreporter.write_line(f"{total.in_words()}, {total.faults} faults")
    if report.FILE and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        stats = terminalreporter.stats
        failed = [each.nodeid for key in ("failed", "error") for each in stats.get(key, [])]
        tests = [*failed, *(each.nodeid for each in stats.get("passed", []))]
        run = reliability.run_of(rows, tests, failed, config.getoption("keyword") or "")
        reliability.record(Path(report.FILE), run)
        terminalreporter.write_line(f"written: {report.FILE}")
    elif report.FILE:
        terminalreporter.write_line(f"not written, because the run was interrupted: {report.FILE}")
