"""The log of `graph-agent run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import run_cli

AGENT = "name: failing\nmodel: openai:gpt-4o-mini\ntools: ['failing:fail']\n"
MODULE = "def fail() -> str:\n    'Fail.'\n    raise KeyError('away')\n"
SCRIPT = ['{"tool_calls": [{"id": "1", "name": "fail", "arguments": {}}]}', "It failed."]


@pytest.mark.parametrize(
    ("options", "found"),
    [([], (0, 0, 1)), (["-v"], (2, 0, 1)), (["--log-level", "debug"], (2, 0, 1)), (["-vv"], (2, 0, 1))],
    ids=["default", "-v", "debug", "-vv"],
)
def test_log_level_selects_steps_failures_and_tracebacks(
    tmp_path: Path, options: list[str], found: tuple[int, int, int]
) -> None:
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "failing.py").write_text(MODULE)

    done = run_cli(tmp_path, "run", *options, "--db", "memory:", "go", script=SCRIPT)

    log = done.stderr
    assert (log.count("Agentic iteration"), log.count("WARNING"), log.count("Traceback")) == found
