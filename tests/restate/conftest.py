"""One Restate server for all tests, and the recovery times at the end of the test session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.restate.fleet import Fleet, fleet_of_two
from tests.restate.server import RestateServer, restate_server
from tests.support.postgres_server import PostgresServer


def _command(url: str, folder: Path, name: str) -> Callable[[str], list[str]]:
    return lambda address: ["-m", "tests.restate.worker", url, str(folder), address, name]


FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def figures(pytestconfig: pytest.Config) -> list[str]:
    """Lines to print at the end of the test session."""
    return pytestconfig.stash.setdefault(FIGURES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the recovery times."""
    if lines := config.stash.get(FIGURES, []):
        terminalreporter.section("recovery with Restate")
        for line in lines:
            terminalreporter.write_line(line)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[RestateServer]:
    """The server."""
    async with restate_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(server: RestateServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Two workers with an SQLite file."""
    folder = tmp_path_factory.mktemp("sqlite")
    async with fleet_of_two(server, folder, "sqlite", _command(f"sqlite:///{folder}/s.db", folder, "sqlite")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[str]:
    """A database in PostgreSQL."""
    with postgres.database() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def postgres_fleet(
    server: RestateServer, database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    """Two workers with PostgreSQL."""
    folder: Path = tmp_path_factory.mktemp("postgres")
    async with fleet_of_two(server, folder, "postgres", _command(database, folder, "postgres")) as fleet:
        yield fleet
