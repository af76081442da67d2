"""Adds fixtures to pytest that record the sessions of a test, and replay them offline.

pytest imports this module at each start, so it imports nothing else of the package until a fixture is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from graph_agent.devtools.recorded_tests import RecordedTest

_OPTION = "--graph-agent-record"
_NO_NAME = re.compile(r"[^\w.-]+")
_PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects what the fixture `recorded` does."""
    parser.getgroup("graph-agent").addoption(
        _OPTION,
        action="store_true",
        help="Run the agents of tests with the fixture `recorded`, and record their sessions in recordings/.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Note whether a test has passed, so that a failed one leaves its recordings as they are."""
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture(name="recorded")
def recorded_fixture(request: pytest.FixtureRequest) -> Any:
    """Like `record` with the option `--graph-agent-record`, otherwise like `replay`."""
    return request.getfixturevalue("record" if request.config.getoption(_OPTION) else "replay")


@pytest.fixture(name="record")
def record_fixture(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A function of an agent that returns a session, which is recorded if the test passes."""
    yield from _sessions(request, records=True)


@pytest.fixture(name="replay")
def replay_fixture(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A function of an agent that returns a session, in which the models and the calls answer as recorded.

    The test fails at the first difference from the recording.
    """
    yield from _sessions(request, records=False)


def _sessions(request: pytest.FixtureRequest, *, records: bool) -> Iterator[Any]:
    from graph_agent.devtools.recorded_tests import RecordedTest

    node = request.node
    name = _NO_NAME.sub("_", node.nodeid.partition("::")[2] or node.name).strip("_")
    file = node.path.parent / "recordings" / node.path.stem / f"{name}.json"
    sessions: RecordedTest = RecordedTest(file, records=records, command=f"pytest {_OPTION} '{node.nodeid}'")
    yield sessions.session
    sessions.close(passed=node.stash.get(_PASSED, False))


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain the comparison `RUN.calls == EXPECTED` or `RUN.results == EXPECTED` of a `RecordedRun`, as lines.

    None if the operator is not `==`, or the left side is neither.
    """
    explain = getattr(left, "explain_difference", None)
    if op != "==" or explain is None:
        return None
    return ["the recorded run differs", *explain(right)]
