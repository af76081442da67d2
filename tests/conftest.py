"""Fixtures of tests in several packages."""

from __future__ import annotations

import gc
import inspect
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.budgets import clock  # noqa: F401 - a fixture
from tests.support.memory_folder import memory_folder
from tests.support.observers import unobserved_requests  # noqa: F401 - a fixture
from tests.support.postgres_server import PostgresServer, binaries, postgres_server
from tests.support.required import unavailable
from tests.support.warm_process import offer_server, use_server

# The modules of the tests create a million objects that live to the end; collections among them take half of the time.
gc.disable()
# A client reads the certificates of 140 authorities in 20 ms; tests connect to this machine only.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "fixtures" / "authority.pem")
if folder := memory_folder():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)

# A change is judged by the same examples each time. `--hypothesis-profile=search` looks for new ones.
settings.register_profile("search", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("fixed")


_MOST_CASES = 2
_OTHER_TARGETS = {"attack", "cluster", "phoenix", "providers", "real", "recipes", "restate", "thorough"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute files and groups of tests for `--dist loadgroup`."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.support.scheduling import FileScheduling

    return FileScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Import the tests once for all workers."""
    from tests.support.forked_workers import fork_workers

    fork_workers(config, specs)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let the workers share a warm process."""
    node.workerinput["warm_process"] = offer_server()


def pytest_configure(config: pytest.Config) -> None:
    if offer := getattr(config, "workerinput", {}).get("warm_process"):
        use_server(offer)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Mark as `thorough` the cases of which `make test` runs a sample.

    A test that is `sampled(n)` keeps each n-th case. Tests with the same parameters would leave out the same cases, so
    each begins at another one, by its name. Of the remaining cases of an asynchronous test, `_MOST_CASES` are kept,
    unless it is marked `every_case`: each of them runs an agent or a server, and most prove the same mechanism again.

    A worker of `make test` does not make the other cases, which are almost half of all.
    """
    yield
    test = metafunc.definition
    of_test = {mark.name for mark in test.iter_markers()}
    calls = metafunc._calls
    cases = [call for call in calls if _OTHER_TARGETS.isdisjoint(of_test | {mark.name for mark in call.marks})]
    if len(cases) < 2:
        return
    kept = cases
    if mark := test.get_closest_marker("sampled"):
        step = min(mark.args[0], len(cases))
        kept = cases[zlib.crc32(test.name.encode()) % step :: step]
    if inspect.iscoroutinefunction(metafunc.function) and "every_case" not in of_test:
        # Not each n-th case: in a product of parameters these would have some values in common.
        kept = sorted(kept, key=lambda call: zlib.crc32(f"{test.nodeid}[{call.id}]".encode()))[:_MOST_CASES]
    left = {call.id for call in kept}
    left_out = {call.id for call in cases if call.id not in left}
    if hasattr(metafunc.config, "workerinput") and "not thorough" in metafunc.config.option.markexpr:
        metafunc._calls = [call for call in calls if call.id not in left_out]
    else:
        thorough = pytest.mark.thorough.mark
        metafunc._calls = [
            replace(call, marks=[*call.marks, thorough] if call.id in left_out else call.marks) for call in calls
        ]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of a worker."""
    if binaries() is None:
        unavailable("no PostgreSQL is installed: apt-get install postgresql")
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database of the test's own."""
    with postgres.database() as url:
        yield url
