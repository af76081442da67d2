"""Fixtures of tests in several packages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.budgets import clock  # noqa: F401 - a fixture
from tests.support.observers import unobserved_requests  # noqa: F401 - a fixture
from tests.support.postgres_server import PostgresServer, binaries, postgres_server

# A change is judged by the same examples each time. `--hypothesis-profile=search` looks for new ones.
settings.register_profile("search", deadline=None)
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.load_profile("fixed")

REQUIRED = "GRAPH_AGENT_REQUIRE_POSTGRES"
"""Variable that makes it a failure when no PostgreSQL is there, as where every change is checked."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of a worker."""
    if binaries() is None:
        missing = pytest.fail if os.environ.get(REQUIRED) else pytest.skip
        missing("no PostgreSQL is installed (e.g. apt-get install postgresql)")
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database of the test's own."""
    with postgres.database() as url:
        yield url
