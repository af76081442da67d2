"""The notebooks run, and contain the outputs of their cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notebooks import NOTEBOOKS, execute, read, text_outputs
from tests.support.warm_process import warm_python

pytestmark = pytest.mark.xdist_group("notebooks")  # groups begin first, and these take long


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_a_run(path: Path) -> None:
    stored = read(path)

    assert text_outputs(stored) == text_outputs(execute(path, warm_python())), "run `make notebooks`"
    assert [cell.source for cell in stored.cells if cell.cell_type == "code" and cell.execution_count is None] == []
