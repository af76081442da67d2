"""Every situation with every provider, through the public API."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.conftest import REFUSALS
from tests.providers.lab import Lab
from tests.providers.row import Row
from tests.providers.rows import ROWS, SAMPLE
from tests.providers.situations import Situation, load


def _cells() -> list[object]:
    sample = [row for row in ROWS if row.name in SAMPLE]
    cells = list[object]()
    for row in ROWS:
        for number, part in enumerate(load()):
            able = [each for each in (*sample[number % len(sample) :], *sample) if _is_cell(each, part)]
            if row.name not in SAMPLE:
                marks = [pytest.mark.providers]
            else:  # `make test` runs each situation with one provider, in turn
                marks = [pytest.mark.thorough] if row != able[0] else []
            if _is_cell(row, part):
                cells.append(pytest.param(row, part, id=f"{row.name}-{part.name}", marks=marks))
    return cells


def _is_cell(row: Row, part: Situation) -> bool:
    return part.needs is None or row.can(part.needs)


@pytest.mark.every_case  # a cell of the page is one provider in one situation
@pytest.mark.parametrize(("row", "part"), _cells())
async def test_situation(
    row: Row, part: Situation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with Lab(row, tmp_path, monkeypatch) as lab:
        try:
            await part.run(lab)
            lab.check()
        finally:
            request.node.stash[REFUSALS] = lab.emulator.shown_refusals()
