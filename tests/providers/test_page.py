"""The page of the matrix."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.providers.matrix import page
from tests.providers.row import Row
from tests.providers.rows import ROWS
from tests.providers.rows.openai_chat import OPENAI
from tests.providers.situations import COLUMNS, Situation, load

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_a_run_without_a_failure(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--provider-page"):
        pytest.skip("This run writes the page at its end.")
    written = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")

    passed = [{"row": row.name, "column": part.column, "outcome": "passed"} for row in ROWS for part in _parts(row)]
    # The versions of packages are those of the environment that wrote the page.
    assert _without_packages(written) == _without_packages(page(passed))


def _parts(row: Row) -> list[Situation]:
    return [part for part in load() if part.needs is None or row.can(part.needs)]


def _without_packages(text: str) -> str:
    return re.sub(r"^(\| [^|]+ \|) langchain-[^|]+\|", r"\1 |", text, flags=re.MULTILINE)


def test_a_cell_has_the_worst_of_its_parts() -> None:
    row = replace(OPENAI, name="some provider", limits={"documents": "No documents."}, package="no-such-package")
    cells = [
        {"row": row.name, "column": part.column, "outcome": "failed" if part.name == "one_call" else "passed"}
        for part in load()
    ]

    line = next(line for line in page(cells, [row]).splitlines() if line.startswith("| some provider"))

    signs = dict(zip(COLUMNS, line.strip("| ").split(" | ")[2:], strict=True))
    odd = {column: sign for column, sign in signs.items() if sign != "✓"}
    assert odd == {"calls": "✗", "media": "–"}
    assert "- No documents. (some provider)" in page(cells, [row])
