"""Options and reports of the matrix of providers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

# LiteLLM would load its prices from the network when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
# The assertions of situations are read as those of tests.
pytest.register_assert_rewrite("tests.providers.situations", "tests.providers.lab")

_WARNINGS = ("DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
"""The clients of third parties warn, and leave sessions open."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the clients of third parties warn."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for name in _WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Name the cell of the matrix in the report of its test."""
    report: pytest.TestReport = yield
    callspec = getattr(item, "callspec", None)
    if report.when == "call" and callspec is not None and {"row", "part"} <= callspec.params.keys():
        row, part = callspec.params["row"], callspec.params["part"]
        report.user_properties.append(("cell", [row.name, part.column, part.name]))
        report.user_properties.append(("refusals", item.stash.get(REFUSALS, [])))
    return report


REFUSALS = pytest.StashKey[list[str]]()
"""What the provider refused in a test."""


class CellWriter:
    """Writes a line of JSON for each cell (row, column, part, outcome, and for a failure what was seen), and the page.

    The page is written if every cell has run.
    """

    def __init__(self, cells: Path | None, page: Path | None) -> None:
        self._path = cells
        self._page = page
        self._cells: list[dict[str, Any]] = []
        if cells is not None:
            cells.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append the cell of a test that has ended."""
        fields = dict(report.user_properties)
        if report.when != "call" or "cell" not in fields:
            return
        row, column, part = json.loads(json.dumps(fields["cell"]))
        cell = {"row": row, "column": column, "part": part, "outcome": report.outcome, "seconds": report.duration}
        if report.failed:
            cell["refusals"] = fields["refusals"]
            cell["seen"] = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")[:2_000]
            cell["log"] = report.caplog[-600:]
        self._cells.append(cell)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(cell) + "\n")

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        from tests.providers.matrix import page
        from tests.providers.rows import ROWS

        if self._page is not None and {cell["row"] for cell in self._cells} == {row.name for row in ROWS}:
            self._page.write_text(page(self._cells), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--provider-cells", type=Path, metavar="FILE", help="Write a line of JSON for each cell.")
    parser.addoption("--provider-page", type=Path, metavar="FILE", help="Write the page of the matrix.")


def pytest_configure(config: pytest.Config) -> None:
    # With workers, the reports arrive in the process that has no `workerinput`.
    cells, page = config.getoption("--provider-cells"), config.getoption("--provider-page")
    if (cells or page) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CellWriter(cells, page), "provider-cells")
