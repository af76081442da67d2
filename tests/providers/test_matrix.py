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
    return [
        pytest.param(
            row, part, id=f"{row.name}-{part.name}", marks=() if row.name in SAMPLE else (pytest.mark.providers,)
        )
        for row in ROWS
        for part in load()
        if part.needs is None or row.can(part.needs)
    ]


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
