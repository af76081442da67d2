"""Questions of a run without a terminal, and `graph-agent resume`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.terminal import APPROVED_TOOLS, agent_folder

BOTH = asks(("1", "write_file", {"path": "a", "text": "b"}), ("2", "ask", {"question": "Which\x1b[31m colour?"}))
WRITE = asks(("1", "write_file", {"path": "a", "text": "b"}))
WAITS = """Session mine waits for an answer:
  1. write_file {"path": "a", "text": "b"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return agent_folder(tmp_path, APPROVED_TOOLS, "write_file", "ask")


def run(folder: Path, *options: str, replies: list[str]) -> subprocess.CompletedProcess[str]:
    return run_cli(folder, "run", "--session", "mine", *options, "write", script=replies)


def resume(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_cli(folder, "resume", "mine", *options, script=["No more actions.", "Done."])


def results(folder: Path) -> list[str]:
    listed = run_cli(folder, "events", "mine", "--json").stdout.splitlines()
    return [event["content"] for event in map(json.loads, listed) if event["type"] == "tool_result"]


def test_a_run_without_a_terminal_names_the_command_that_goes_on(folder: Path) -> None:
    done = run(folder, "--db", "sqlite:///my sessions.db", replies=[WRITE])

    go_on = "Go on with: graph-agent resume mine --db 'sqlite:///my sessions.db' [--approve-all]\n"
    assert (done.returncode, done.stderr) == (4, WAITS + go_on)


def test_approve_all_runs_without_a_question(folder: Path) -> None:
    done = run(folder, "--approve-all", replies=[WRITE, "No more actions.", "Done."])

    assert (done.returncode, done.stderr, results(folder)) == (0, "", ["decided: {'type': 'approve'}"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "decided"),
    [
        (["--approve-all"], {"type": "approve"}),
        (["--reject-all"], {"type": "reject"}),
        (["--reject-all", "-m", "not now"], {"type": "reject", "message": "not now"}),
        (["-d", "edit:{path: c}"], {"type": "edit", "edited_action": {"name": "write_file", "args": {"path": "c"}}}),
    ],
    ids=["approve", "reject", "reason", "edit"],
)
def test_options_decide_the_calls_that_wait(folder: Path, options: list[str], decided: object) -> None:
    run(folder, replies=[WRITE])

    done = resume(folder, *options)

    assert (done.returncode, done.stdout, done.stderr, results(folder)) == (0, "Done.\n", "", [f"decided: {decided}"])


def test_calls_and_questions_are_answered_together(folder: Path) -> None:
    waiting = run(folder, replies=[BOTH])
    unfit = resume(folder, "-d", "approve")
    done = resume(folder, "-d", "approve", "-a", "blue")

    assert (waiting.returncode, unfit.returncode, done.returncode) == (4, 2, 0)
    assert ("Which\\x1b[31m colour?" in waiting.stderr, "0 answers for 1 calls and 1 questions" in unfit.stderr) == (
        True,
        True,
    )
    assert results(folder) == ["decided: {'type': 'approve'}", "answered: blue"]


def test_without_options_and_terminal_the_questions_are_printed_again(folder: Path) -> None:
    run(folder, replies=[WRITE])

    done = resume(folder)

    assert (done.returncode, done.stdout, done.stderr.startswith(WAITS)) == (4, "", True)


def test_json_has_the_open_questions(folder: Path) -> None:
    done = run(folder, "--json", replies=[WRITE])

    result = json.loads(done.stdout.splitlines()[-1])["result"]
    [asked] = result["interrupts"]
    assert (done.returncode, result["status"], asked["value"]["action_requests"][0]["name"]) == (
        4,
        "RUNNING",
        "write_file",
    )


def test_a_session_that_does_not_wait_has_nothing_to_resume(folder: Path) -> None:
    run(folder, replies=["No more actions.", "Done."])

    done = resume(folder, "--approve-all")

    assert (done.returncode, "nothing to resume" in done.stderr) == (2, True)
