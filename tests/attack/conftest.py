"""The summary of the attacks at the end of a test session."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.attack import report

_TEST_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each attack the time that its scale needs."""
    for item in items:
        if item.get_closest_marker("attack"):
            item.add_marker(pytest.mark.timeout(_TEST_S * report.SCALE))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each attack, and one line of totals; write the page if it is asked for."""
    rows = report.merged()
    if not rows:
        return
    terminalreporter.section("attacks")
    for row in rows:
        terminalreporter.write_line(row.in_words())
    total = report.Row(
        "attack", sum((row.figures for row in rows), Counter[str]()), [v for row in rows for v in row.found]
    )
    terminalreporter.write_line(f"{total.in_words()}, {total.faults} faults")
    if report.FILE:
        report.write(Path(report.FILE), rows)
        terminalreporter.write_line(f"written: {report.FILE}")
