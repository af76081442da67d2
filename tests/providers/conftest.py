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
    """Writes a line of JSON for each cell: row, column, part, outcome, seconds, and for a failure what was seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

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
        with self._path.open("a") as file:
            file.write(json.dumps(cell) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--provider-cells", metavar="FILE", help="Write a line of JSON for each cell of the matrix.")


def pytest_configure(config: pytest.Config) -> None:
    # With workers, the reports arrive in the process that has no `workerinput`.
    if (path := config.getoption("--provider-cells")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CellWriter(Path(path)), "provider-cells")
