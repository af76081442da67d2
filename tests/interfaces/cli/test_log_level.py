"""The log of `graph-agent run`."""

from __future__ import annotations

import json
import re
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


def test_json_records_have_the_fields_of_their_run(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "failing.py").write_text(MODULE)

    done = run_cli(tmp_path, "run", "-v", "--session", "s", "go", script=SCRIPT, GRAPH_AGENT_LOG_FORMAT="json")

    records = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    own = [each for each in records if each["logger"].startswith("graph_agent.")]
    assert len({each["input_id"] for each in own if "input_id" in each}) == 1
    assert [
        (re.sub(r"[\d.]+(?= s\b| \+| tokens)", "…", each["message"]).splitlines()[0], each["step"], each.get("call_id"))
        for each in own
    ] == [
        ("Agentic iteration 1/5", 1, None),
        ("The model scripted took … s for the plan: … + … tokens", 1, None),
        ("Executing 1 tool call(s)", 1, None),
        ("The tool 'fail' failed: KeyError: 'away'", 1, "1"),
        ("The call of fail took … s: error", 1, "1"),
        ("Agentic iteration 2/5", 2, None),
        ("The model scripted took … s for the plan: … + … tokens", 2, None),
        ("Final response received (no tool calls)", 2, None),
        ("The input ended: completed", 2, None),
    ]
