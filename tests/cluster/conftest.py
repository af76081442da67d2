"""The cluster, and its figures at the end of a test session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import median

import pytest

from deploy.aegra.cluster import ROOT, Cluster, cluster
from deploy.aegra.scenarios import Takeover
from deploy.aegra.services import MissingServiceError
from tests.support.required import unavailable

PYTHON = ROOT / ".venv-cluster" / "bin" / "python"
_figures = pytest.StashKey[dict[str, list[Takeover]]]()


@pytest.fixture(scope="module")
def aegra() -> Iterator[Cluster]:
    """A cluster of two instances."""
    if not PYTHON.exists():
        unavailable("no environment with Aegra, which needs Python 3.12 or newer: run `make cluster`")
    try:
        with cluster(str(PYTHON), PAYMENTS_DELAY_S="1") as running:
            for name in ("a", "b"):
                running.start(name)
            yield running
    except MissingServiceError as missing:
        unavailable(str(missing))


@pytest.fixture
def rounds() -> int:
    """How often each test stops an instance."""
    return int(os.environ.get("TEST_CLUSTER_ROUNDS", "2"))


@pytest.fixture
def takeovers(request: pytest.FixtureRequest) -> list[Takeover]:
    """The takeovers of a test, for the summary."""
    return request.config.stash.setdefault(_figures, {}).setdefault(request.node.name, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the figures of each test."""
    for name, seen in config.stash.get(_figures, {}).items():
        taken = [each.takeover_s for each in seen if each.taken]
        worst = f"median {median(taken):.1f} s, worst {max(taken):.1f} s" if taken else "none"
        terminalreporter.write_line(
            f"{name}: {len(seen)} rounds, {len(taken)} takeovers ({worst}), "
            f"{sum(each.stale_writes for each in seen)} stale writes, "
            f"{sum(each.repeated for each in seen)} repeated payments, {sum(len(each.faults) for each in seen)} faults"
        )
