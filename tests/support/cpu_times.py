"""A plug-in of pytest that prints the CPU time of the dearest modules, tests and fixtures, with their processes.

Run it in one process: `python scripts/supervise.py .venv/bin/python -m pytest -p tests.support.cpu_times FOLDER`.
Without `supervise.py`, processes whose parent has ended are not counted. The first test that starts a warm process pays
for the imports of all of them, about six seconds.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_SHOWN = 25
_TICKS = os.sysconf("SC_CLK_TCK")
_modules, _tests, _fixtures = (defaultdict[str, float](float) for _ in range(3))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def _of_other_processes() -> float:
    """Return the seconds of all processes that descend from the parent, without this one."""
    ticks, pending = 0, _children(os.getppid())
    while pending:
        pid = pending.pop()
        pending += _children(pid)
        if pid != os.getpid():
            with suppress(OSError):
                # The name of the program, in parentheses, may contain anything.
                fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def _cpu_time() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + _of_other_processes()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Count the time of a test, with its fixtures, for its module and for all of its cases."""
    begun = _cpu_time()
    result = yield
    spent = _cpu_time() - begun
    _modules[item.nodeid.partition("::")[0]] += spent
    _tests[item.nodeid.partition("[")[0]] += spent
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[Any]:
    """Count the time of a fixture that several tests share."""
    begun = _cpu_time()
    result = yield
    if fixturedef.scope != "function":
        _fixtures[f"{fixturedef.argname} of {request.node.nodeid or 'the session'}"] += _cpu_time() - begun
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the tables."""
    for name, found in (("modules", _modules), ("tests", _tests), ("fixtures", _fixtures)):
        terminalreporter.section(f"CPU seconds of {name}: {sum(found.values()):.1f}")
        for place, spent in sorted(found.items(), key=lambda each: -each[1])[:_SHOWN]:
            terminalreporter.write_line(f"{spent:7.2f}  {place}")
