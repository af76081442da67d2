"""The summary of the attacks at the end of a test session."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.attack.fleet import SUMMARIES, TOTALS, in_words

_FIRST = ("turns", "kills", "stops", "restarts", "races", "full disks", "acknowledged", "effects", "violations")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each attack, and one line of totals."""
    if not SUMMARIES:
        return
    terminalreporter.section("attacks")
    for line in SUMMARIES:
        terminalreporter.write_line(line)
    totals = Counter({name: TOTALS[name] for name in _FIRST})
    terminalreporter.write_line(f"attack: {', '.join(in_words(totals))}")
