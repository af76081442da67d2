"""Run all benchmarks and write `benchmarks/RESULTS.md`: `python -m benchmarks.results`, or `make bench`.

Each module runs in its own process. `--only` selects modules; the tables of the others are kept from the last run. Rows
that became worse than recorded are named. With `--check`, as `make bench-quick` has it, nothing is written, and such a
row is an error.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import capacity, plots
from benchmarks.harness import Table
from tests.support.postgres_server import binaries

RESULTS = Path(__file__).parent / "RESULTS.md"
MODULES = (
    "instructions",
    "cpu",
    "turns",
    "sessions",
    "peers",
    "waves",
    "streaming",
    "serve",
    "imports",
    "options",
    "guards",
    "a2a",
    "postgres",
    "long_session",
    "growth",
    "many_sessions",
    "memory",
)
_SAME_COUNT = 1.02
"""Factor up to which a count of instructions is the same."""
_SAME_TIME = 1.05
"""Factor up to which a ratio of times is the same, beyond its quartiles."""
_VERSIONS = ("langgraph", "langchain-core", "langchain", "pydantic", "fastapi", "uvicorn", "a2a-sdk")
_INTRODUCTION = """\
# Benchmark results

Written by `make bench`. Ratios are medians over interleaved rounds, with their quartiles; below 1 is faster than the
reference. CPU time includes all threads of the measured process. Wall time also contains the time of other programs on
the machine. "Aim" is the project's target for a row. Replies have 200 characters and tool results 1,000; the model and
the tool take no time.
"""


def machine() -> str:
    """Return the class of this machine and the versions of the compared packages."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _VERSIONS)
    system = f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    return f"{system}; {versions}."


def section(module: str, tables: list[Table], date: str) -> str:
    """Return a module's part of the page, with the machine on which it was measured."""
    parts = [f"{table.title}\n\n{table.note}\n\n{table.markdown()}" for table in tables]
    head = f"<!-- {module} -->\n\n_{date}, `python -m benchmarks.{module}`. {machine()}_\n"
    return "\n## ".join([head, *(f"{part}\n" for part in parts)])


def sections(page: str) -> dict[str, str]:
    """Return the parts of a page by module."""
    found = re.split(r"^<!-- (\w+) -->$", page, flags=re.MULTILINE)[1:]
    return {name: f"<!-- {name} -->{text.rstrip()}\n" for name, text in zip(found[::2], found[1::2], strict=True)}


def run(module: str, seconds: float) -> list[Table]:
    """Run one module in a new process, which prints its tables, and return them.

    Raises:
        SystemExit: If it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tables.json"
        command = [sys.executable, "-m", f"benchmarks.{module}", "--seconds", str(seconds), "--json", str(file)]
        if status := subprocess.run(command, check=False).returncode:
            raise SystemExit(f"benchmarks.{module} exited with status {status}.")
        return [Table(**table) for table in json.loads(file.read_text(encoding="utf-8"))]


def worse(recorded: str, tables: list[Table]) -> list[str]:
    """Name the rows whose ratio became worse than recorded.

    A ratio with quartiles is worse if its lower quartile is more than 5 % above the recorded upper one; a count, if it
    rose by 2 %.

    Args:
        recorded: A module's part of the page.
        tables: Its new tables.
    """
    found: list[str] = []
    for table in tables:
        part = recorded.partition(f"## {table.title}\n")[2].partition("\n## ")[0]
        grid = [
            [cell.strip() for cell in line.strip("| ").split(" | ")] for line in part.splitlines() if line[:1] == "|"
        ]
        before = {row[0]: _spread(grid[0], row) for row in grid[2:]}
        permitted = _SAME_TIME if "quartiles" in table.columns else 1.0
        for row in table.rows:
            old, new = before.get(row[0]), _spread(table.columns, row)
            if old is not None and new is not None and new[0] > old[1] * permitted:
                found.append(f"{table.title}: {row[0]}: {_shown(new)}, recorded {_shown(old)}")
    return found


def _spread(columns: list[str], row: list[str]) -> tuple[float, float] | None:
    """Return the bounds of a row's ratio; None if it has none."""
    cells = dict(zip(columns, row, strict=False))
    try:
        if "quartiles" in cells:
            low, high = map(float, cells["quartiles"].split("–"))
            return low, high
        ratio = float(cells["ratio"])
    except (KeyError, ValueError):
        return None
    return ratio, ratio * _SAME_COUNT


def _shown(spread: tuple[float, float]) -> str:
    return "–".join(f"{bound:.2f}" for bound in spread)


def main() -> None:
    """Run the modules and write the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0, help="time for one comparison")
    parser.add_argument("--only", nargs="+", choices=MODULES, default=MODULES)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a row became worse")
    given = parser.parse_args()
    if "postgres" in given.only and binaries() is None:
        sys.exit("No PostgreSQL: apt-get install postgresql, or leave out its tables with --only.")
    began, now_worse = time.monotonic(), list[str]()
    for module in given.only:
        parts = sections(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        tables = run(module, given.seconds)
        now_worse += worse(parts.get(module, ""), tables)
        if given.check:
            continue
        parts[module] = section(module, tables, datetime.datetime.now(datetime.UTC).date().isoformat())
        body = "\n".join(parts[name] for name in MODULES if name in parts)
        RESULTS.write_text(f"{_INTRODUCTION}\n{body}", encoding="utf-8")
    for row in now_worse:
        print(f"Worse than recorded: {row}")
    if given.check:
        print(f"{len(now_worse)} rows became worse, after {time.monotonic() - began:.0f} s")
        sys.exit(bool(now_worse))
    # The page on scale shows some of the figures, and plots show others.
    capacity.write()
    plots.write()
    print(f"{RESULTS} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
