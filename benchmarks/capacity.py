"""Capacity of a number of databases, computed from `benchmarks/RESULTS.md`: `python -m benchmarks.capacity`.

`--write` puts the tables into `docs/scale.md`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks/RESULTS.md", ROOT / "docs/scale.md"
RESTATE = ROOT / "docs/guides/restate.md"

TURN_EVERY_S = 30
"""Seconds from one turn of an active session to its next: the model's time, and the person's."""
TURNS_OF_A_SESSION = 20
"""Turns of a stored session."""
MESSAGES_KB = 1.2
"""Kilobytes of the messages of a turn, as in the benchmarks: a reply of 200 characters, a tool result of 1,000."""
DISK_GB = 100
"""Gigabytes of one database's disk."""
CPUS_OF_A_SERVER = 2
"""CPUs of a machine with servers, with one worker process for each."""
DATABASES = (1, 2, 4, 8)
"""Numbers of databases, each with sessions of its own."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured figures that capacity follows from."""

    checkpoints_per_s: float
    """Most checkpoints a second of one database, with workers, clients and database on one machine."""
    turns_per_s: float
    """Turns a second in the same measurement."""
    kb_per_turn: float
    """Kilobytes of a stored turn beyond its messages."""
    server_cpu_s: float
    """CPU seconds of a request to one worker process of the server, with many clients."""
    server_kb: float
    """Kilobytes of memory that the measured server has used."""


def read_table(page: str, title: str) -> list[dict[str, str]]:
    """Return the rows of a table of the results by column.

    Args:
        page: The results.
        title: The table's heading.

    Raises:
        ValueError: If there is no such table.
    """
    found = re.search(rf"^## {re.escape(title)}\n+.*?\n\n(\|.*?)(?:\n\n|\Z)", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"The results have no table {title!r}; run `make bench`.")
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def read_measured(page: str) -> Measured:
    """Return the figures of the results that capacity follows from.

    Raises:
        ValueError: If a figure is missing.
    """
    own = [row for row in read_table(page, "PostgreSQL: throughput") if row["work"].endswith("graph-agent, own saver")]
    best = max(own, key=lambda row: _number(row["checkpoints/s"]))
    stored = _row(page, "Storage", "200 turns, graph-agent, own saver")
    served = _row(page, "The server", "32 clients, at once, graph-agent")
    memory = re.search(r"graph-agent \d+ to (\d+) MB", page)
    if memory is None:
        raise ValueError("The results have no memory of the server; run `make bench`.")
    return Measured(
        checkpoints_per_s=_number(best["checkpoints/s"]),
        turns_per_s=_number(best["turns/s"]),
        kb_per_turn=_number(stored["KB/turn"]),
        server_cpu_s=_number(served["CPU"]) / 1000,
        server_kb=float(memory[1]) * 1000,
    )


def table(measured: Measured) -> str:
    """Return the table of capacity in Markdown."""
    rows = [
        ("databases", *(f"{number}" for number in DATABASES)),
        ("turns a second", *(_round(number * measured.turns_per_s) for number in DATABASES)),
        ("checkpoints a second", *(_round(number * measured.checkpoints_per_s) for number in DATABASES)),
        ("active sessions", *(_round(number * measured.turns_per_s * TURN_EVERY_S) for number in DATABASES)),
        ("GB a day, at this rate all day", *(_round(number * _gb_per_day(measured)) for number in DATABASES)),
        ("stored sessions", *(_round(number * _stored_sessions(measured)) for number in DATABASES)),
        ("machines with servers", *(_servers(number, measured) for number in DATABASES)),
        ("memory of their workers", *(_memory(number, measured) for number in DATABASES)),
    ]
    header, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([header, f"|{' --- |' * (len(DATABASES) + 1)}", *body])


def capacity(measured: Measured) -> str:
    """Return the table of capacity, with the figures that it follows from."""
    return (
        f"Measured: {measured.checkpoints_per_s:g} checkpoints and {measured.turns_per_s:g} turns a second on one "
        f"database,\n{measured.kb_per_turn:g} KB a turn beyond its messages, {measured.server_cpu_s * 1000:g} ms of "
        "CPU for a request to a server.\n\n"
        f"Assumed: a turn every {TURN_EVERY_S} seconds in an active session, {TURNS_OF_A_SESSION} turns in a stored "
        f"one,\n{MESSAGES_KB:g} KB of messages a turn, a disk of {DISK_GB} GB for each database, and "
        f"{CPUS_OF_A_SERVER} CPUs for each machine with servers.\n\n"
        f"{table(measured)}"
    )


def recovery(page: str) -> str:
    """Return the table of recovery times of several servers on one PostgreSQL database.

    Raises:
        ValueError: If the results have no such figures.
    """
    rows = read_table(page, "PostgreSQL: recovery")
    lines = [f"| {row['fault']} | {row['times']} | {row['median']} | {row['most']} |" for row in rows]
    return "\n".join(["| fault, without an engine | times | median | worst |", "| --- | --- | --- | --- |", *lines])


def with_parts(page: str, parts: Mapping[str, str]) -> str:
    """Return a page with its parts between the marks `<!-- NAME -->` and `<!-- end of NAME -->` replaced.

    Args:
        page: The page.
        parts: Name → text.

    Raises:
        ValueError: If a mark is missing.
    """
    for name, text in parts.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not begin or not end:
            raise ValueError(f"The page has no marks for its part {name!r}.")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


def recovery_of_restate(guide: str) -> str:
    """Return the table of recovery times in the guide to Restate.

    Raises:
        ValueError: If the guide has none.
    """
    found = re.search(r"^\|.*\|$(?:\n\|.*\|$)*", guide.partition("## Measured")[2], re.MULTILINE)
    if found is None:
        raise ValueError("The guide to Restate has no table of measured times.")
    return found[0]


def written(page: str) -> str:
    """Return the page with the figures of the results and of the guide to Restate."""
    results, guide = RESULTS.read_text(encoding="utf-8"), RESTATE.read_text(encoding="utf-8")
    parts = {
        "recovery": recovery(results),
        "restate": recovery_of_restate(guide),
        "capacity": capacity(read_measured(results)),
    }
    return with_parts(page, parts)


def _kb_of_a_turn(measured: Measured) -> float:
    return measured.kb_per_turn + MESSAGES_KB


def _gb_per_day(measured: Measured) -> float:
    return measured.turns_per_s * 86_400 * _kb_of_a_turn(measured) / 1e6


def _stored_sessions(measured: Measured) -> float:
    return DISK_GB * 1e6 / (TURNS_OF_A_SESSION * _kb_of_a_turn(measured))


def _workers(databases: int, measured: Measured) -> int:
    return math.ceil(databases * measured.turns_per_s * measured.server_cpu_s)


def _servers(databases: int, measured: Measured) -> str:
    return f"{math.ceil(_workers(databases, measured) / CPUS_OF_A_SERVER)}"


def _memory(databases: int, measured: Measured) -> str:
    return f"{_round(_workers(databases, measured) * measured.server_kb / 1000)} MB"


def _round(value: float) -> str:
    """A number of two significant digits, with commas."""
    digits = max(0, 1 - math.floor(math.log10(value)))
    rounded = round(value, 1 - math.floor(math.log10(value)))
    return f"{rounded:,.{digits}f}"


def _row(page: str, title: str, work: str) -> dict[str, str]:
    found = [row for row in read_table(page, title) if row["work"] == work]
    if not found:
        raise ValueError(f"The table {title!r} of the results has no row {work!r}; run `make bench`.")
    return found[0]


def _number(cell: str) -> float:
    return float(cell.split()[0].replace(",", ""))


def write() -> None:
    """Write the figures of the results into the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    """Print the table of capacity, or write all figures into the page."""
    if "--write" in sys.argv[1:]:
        write()
    else:
        print(capacity(read_measured(RESULTS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
