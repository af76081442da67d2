"""Tests and cases made of stored sessions: they pass unedited, and run no side-effecting tool unasked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import yaml

from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.warm_process import ONLY_OUR_PLUGIN, warm_python

TOOLS = '''
import os
from pathlib import Path

from langchain_core.tools import tool


def pay(amount: int) -> str:
    """Pay."""
    with Path(__file__).with_name("paid").open("a") as file:
        file.write(f"{amount}\\n")
    if "DIES" in os.environ:
        os._exit(9)
    return "paid"


@tool
def look(text: str) -> str:
    """Look."""
    return "seen"


look.metadata = {"effect": "read"}
'''
PAYS = [asks(("a", "pay", {"amount": 5})), "You paid 5."]


def folder_of(folder: Path, **agent: object) -> Path:
    spec = {"name": "payer", "model": "openai:gpt-4o-mini", "db": "sqlite:///pay.db", "tools": ["my_tools:pay"]}
    (folder / "agent.yaml").write_text(yaml.safe_dump({**spec, **agent}))
    (folder / "my_tools.py").write_text(TOOLS)
    return folder


def crashed(folder: Path) -> Path:
    """A folder with a session whose process ended during a call, and which was resumed then."""
    folder_of(folder)
    killed = run_cli(folder, "run", "--session", "s1", "Pay 5.", script=PAYS, DIES="1")
    resumed = run_cli(folder, "resume", "s1", script=["It may be paid."])
    assert (killed.returncode, resumed.returncode) == (9, 0), killed.stderr + resumed.stderr
    return folder


def test_a_test_of_a_session_with_a_crash_passes_unedited(tmp_path: Path) -> None:
    folder = crashed(tmp_path)

    run_cli(folder, "sessions", "export", "s1", "--test", "--out", "test_with_agent.py")
    (folder / "agent.yaml").rename(folder / "other.yaml")
    run_cli(folder, "sessions", "export", "s1", "--test", "--db", "sqlite:///pay.db", "--out", "test_with_stubs.py")
    (folder / "other.yaml").rename(folder / "agent.yaml")

    ran = subprocess.run(
        [warm_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, **ONLY_OUR_PLUGIN},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    replayed = run_cli(folder, "replay", "s1")
    assert ("2 passed" in ran.stdout, replayed.returncode, (folder / "paid").read_text()) == (True, 0, "5\n"), (
        ran.stdout
    )


def test_a_case_of_a_session_with_a_crash_expects_no_status_that_a_new_run_cannot_have(tmp_path: Path) -> None:
    folder = crashed(tmp_path)

    exported = yaml.safe_load(run_cli(folder, "sessions", "export", "s1", "--case").stdout)["cases"]
    run_cli(folder, "feedback", "s1", "up", "--case", "cases.yaml")

    rated = yaml.safe_load((folder / "cases.yaml").read_text())["cases"]
    passed = run_cli(folder, "eval", "cases.yaml", "--allow-writes", script=[PAYS[0], "It may be paid."])
    calls = [{"name": "pay", "arguments": {"amount": 5}}]
    assert [(case["expect"]["calls"], case["metadata"]["not_expected"]) for case in (*exported, *rated)] == [
        (calls, ["pay: unknown"])
    ] * 2
    assert (passed.returncode, passed.stdout.splitlines()[0][:4]) == (0, "pass")


def test_a_case_of_a_session_runs_side_effecting_tools_only_if_they_are_allowed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, approve="pay")
    run_cli(folder, "run", "--session", "s1", "--approve-all", "Pay 5.", script=PAYS)
    run_cli(folder, "feedback", "s1", "up", "--case", "cases.yaml")

    for form in ("langsmith:theirs.jsonl", "pydantic-evals:theirs.yaml"):
        run_cli(folder, "eval", "cases.yaml", "--export", form)

    forms = ("--from-feedback", "cases.yaml", "theirs.jsonl", "theirs.yaml")
    refused = [run_cli(folder, "eval", given, script=PAYS) for given in forms]
    paid_once = (folder / "paid").read_text()
    allowed = run_cli(folder, "eval", "cases.yaml", "--allow-writes", script=PAYS)

    (case,) = yaml.safe_load((folder / "cases.yaml").read_text())["cases"]
    begin = "error: The case 's1-8' was taken from a session, whose approvals it repeats, and agent.yaml has "
    assert (case["session"], case["approvals"], paid_once) == ("s1", {"pay": "approve"}, "5\n")
    assert [(each.returncode, each.stderr[: len(begin)]) for each in refused] == [(2, begin)] * 4
    assert ["real: pay. Give --allow-writes to run" in each.stderr for each in refused] == [True] * 4
    assert (allowed.returncode, (folder / "paid").read_text()) == (0, "5\n5\n")


def test_approve_all_leaves_a_call_that_may_have_run_before_to_a_person(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, approve="pay")
    run_cli(folder, "run", "--session", "s1", "--approve-all", "Pay 5.", script=PAYS, DIES="1")

    again = run_cli(folder, "run", "--session", "s1", "--approve-all", "Pay it now.", script=PAYS)
    paid_once = (folder / "paid").read_text()
    decided = run_cli(folder, "resume", "s1", "--approve-all", script=["Paid."])

    assert (again.returncode, paid_once) == (4, "5\n"), again.stderr
    assert (decided.returncode, (folder / "paid").read_text()) == (0, "5\n5\n"), decided.stderr


def test_a_case_of_a_session_without_side_effecting_calls_runs_without_the_option(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tools=["my_tools:look", "my_tools:pay"])
    looks = [asks(("a", "look", {"text": "x"})), "Seen."]
    run_cli(folder, "run", "--session", "looked", "Look.", script=looks)
    run_cli(folder, "run", "--session", "paid", "Pay 5.", script=PAYS)
    for session in ("looked", "paid"):
        run_cli(folder, "feedback", session, "up", "--case", "cases.yaml")
    for form in ("langsmith:theirs.jsonl", "pydantic-evals:theirs.yaml"):
        run_cli(folder, "eval", "cases.yaml", "--export", form)

    refused = run_cli(folder, "eval", "cases.yaml", script=looks)
    passed = [
        run_cli(folder, "eval", given, "--case", "looked*", "--fresh", script=looks)
        for given in ("cases.yaml", "--from-feedback", "theirs.jsonl", "theirs.yaml")
    ]
    # A file of an older version names no tools.
    written = yaml.safe_load((folder / "cases.yaml").read_text())
    called = [case.pop("called") for case in written["cases"]]
    (folder / "older.yaml").write_text(yaml.safe_dump(written))
    older = run_cli(folder, "eval", "older.yaml", "--case", "looked*", script=looks)

    begin = "error: The case 'paid-6' was taken from a session"
    assert (refused.returncode, refused.stderr[: len(begin)], called) == (2, begin, [["look"], ["pay"]]), refused.stderr
    assert [each.returncode for each in passed] == [0] * 4, [each.stdout + each.stderr for each in passed]
    assert (older.returncode, "The case 'looked-" in older.stderr) == (2, True), older.stderr
    assert (folder / "paid").read_text() == "5\n"


def test_a_case_of_a_session_runs_with_tools_that_only_read(tmp_path: Path) -> None:
    looks = [asks(("a", "look", {"text": "x"})), "Seen."]
    folder = folder_of(tmp_path, tools=["my_tools:look"])
    run_cli(folder, "run", "--session", "s1", "Look.", script=looks)
    run_cli(folder, "feedback", "s1", "up")

    passed = run_cli(folder, "eval", "--from-feedback", "--json", script=looks)

    assert (passed.returncode, json.loads(passed.stdout)["passed"]) == (0, 1), passed.stderr


def test_cases_without_an_agent_take_the_agent_file_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "cases.yaml").write_text("cases: [{name: a, input: Hello, expect: {answer: Hi}}]")

    passed = run_cli(folder, "eval", "cases.yaml", script=["Hi."])
    (folder / "agent.yaml").unlink()
    refused = run_cli(folder, "eval", "cases.yaml", script=["Hi."])

    wanted = "error: Cases cases.yaml: it names no agent, and there is no agent.yaml; add the key 'agent', or give "
    assert (passed.returncode, refused.returncode, refused.stderr[: len(wanted)]) == (0, 2, wanted), passed.stderr
