"""Writes the page of the matrix: every provider, every situation, and what a provider cannot do.

    python -m tests.providers.matrix CELLS.jsonl docs/providers.md

The page has no dates and no timings, so that an equal run writes an equal page.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.providers.row import Row
from tests.providers.rows import PAIRED, ROWS
from tests.providers.situations import COLUMNS, DESCRIPTIONS, load

PASSED, FAILED, LIMITED, ABSENT = "✓", "✗", "–", " "
_HEAD = """# Providers

Can an agent work with your provider? Each row of this table is one provider or server of models, reached through its
own LangChain package, or through `openai:` with its address. The tests run an agent against a server on this machine
that refuses what the provider refuses, with its status and words, and answers in its shapes and chunks. The rules were
collected from public reports, recorded streams, and the sources of servers and SDKs. No request leaves the machine, so
the table shows that requests and replies have the right form. It does not show how well a model works.

`make providers` runs the table and writes this page.

| sign | meaning |
|---|---|
| ✓ | every part of the situation passed |
| – | passed, as far as the provider can do it; see [below](#what-a-provider-cannot-do) |
| ✗ | a part failed |
"""
_LIMITS = """
## What a provider cannot do

The agent works around these limits where it can, and names what it could not send.
"""
_LEARNED = """
## What an agent learns

The address of a local server does not reveal what the server refuses. The agent reads it from the first refusal,
changes the request once, and reports the setting in a `warning` event. These rows may refuse one request for each of
these reasons:
"""
_PAIRS = """
## Two providers in one session

Each two of the following rows also take turns in one session, in both orders: the second continues by a fallback after
a call of the first, and hands the conversation back. No request is refused, and no reasoning reaches the other
provider.

{names}.
"""


def page(cells: Iterable[Mapping[str, Any]], rows: Iterable[Row] = ROWS) -> str:
    """Return the page for the cells of a run, each with `row`, `column` and `outcome`."""
    outcomes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in cells:
        outcomes[cell["row"], cell["column"]].append(cell["outcome"])
    rows = list(rows)
    return "\n".join(
        [
            _HEAD,
            *_situations(),
            *_table(rows, outcomes),
            *_limits(rows),
            *_learned(rows),
            _PAIRS.format(names=", ".join(PAIRED)),
        ]
    )


def _situations() -> list[str]:
    lines = ["## Situations", "", "| | situation | what happens |", "|---|---|---|"]
    lines += [f"| {at} | {name} | {DESCRIPTIONS[name]} |" for at, name in enumerate(COLUMNS, 1)]
    return lines


def _table(rows: list[Row], outcomes: Mapping[tuple[str, str], list[str]]) -> list[str]:
    numbers = " | ".join(str(at) for at in range(1, len(COLUMNS) + 1))
    lines = ["", "## Results", "", f"| provider | package | {numbers} |", "|---|---|" + ":-:|" * len(COLUMNS)]
    for row in rows:
        signs = " | ".join(_sign(row, column, outcomes.get((row.name, column), [])) for column in COLUMNS)
        lines.append(f"| {row.name} | {_package(row.package)} | {signs} |")
    return lines


def _sign(row: Row, column: str, outcomes: list[str]) -> str:
    if "failed" in outcomes:
        return FAILED
    parts = [part for part in load() if part.column == column]
    limited = any(ability in row.limits for part in parts for ability in part.abilities)
    return (LIMITED if limited else PASSED) if outcomes or limited else ABSENT


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} (not installed)"


def _limits(rows: list[Row]) -> list[str]:
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for text in (*row.limits.values(), row.note):
            if text and row.name not in found[text]:
                found[text].append(row.name)
    found.pop("", None)
    return [_LIMITS, *(f"- {text} ({', '.join(names)})" for text, names in found.items())]


def _learned(rows: list[Row]) -> list[str]:
    lines = [_LEARNED]
    for row in rows:
        lines += [f"- {row.name}: {'; '.join(row.learned.values())}."] if row.learned else []
    return lines


def main() -> None:
    """Write the page from a file of cells."""
    cells = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    Path(sys.argv[2]).write_text(page(cells), encoding="utf-8")


if __name__ == "__main__":
    main()
