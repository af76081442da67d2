"""The page of the matrix."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.providers.matrix import page
from tests.providers.rows import ROWS
from tests.providers.rows.openai_chat import OPENAI
from tests.providers.situations import COLUMNS, load

ROOT = Path(__file__).parents[2]


def test_the_page_has_every_row() -> None:
    written = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")

    table = written.partition("## Results")[2].partition("\n## ")[0]
    assert re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:] == [row.name for row in ROWS]


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
