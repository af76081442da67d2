"""`graph-agent replay`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.terminal import agent_folder

TOOLS = '''
def pay(amount: int) -> str:
    """Pay an amount."""
    with open("paid.txt", "a") as file:
        print(amount, file=file)
    return f"paid {amount}"
'''


def paid(tmp_path: Path) -> Path:
    """Return the folder of an agent with two sessions, of which one has paid."""
    folder = agent_folder(tmp_path, TOOLS, "pay")
    run_cli(folder, "run", "--session", "s", "Pay 3.", script=[asks(("p", "pay", {"amount": 3})), "Paid."])
    run_cli(folder, "run", "--session", "t", "Hello", script=["Hi."])
    return folder


def test_a_replay_reports_the_first_difference_and_its_exit_status(tmp_path: Path) -> None:
    folder = paid(tmp_path)
    database = next(folder.glob("*.db")).read_bytes()
    more = [asks(("x", "pay", {"amount": 4})), "Paid."]

    equal = run_cli(folder, "replay", "s")
    other = run_cli(folder, "replay", "s", "--model", "openai:other", "--json", script=more)
    refused = run_cli(folder, "replay", "s", "--tool", "pay=my_tools:pay")

    found = json.loads(other.stdout)
    assert {
        "equal": (equal.returncode, equal.stdout),
        "other": (other.returncode, found["equal"], [each["text"] for each in found["differences"]], found["stopped"]),
        "refused": (refused.returncode, "may write, so it never runs in a replay" in refused.stderr),
        "paid": (folder / "paid.txt").read_text(),
        "unchanged": next(folder.glob("*.db")).read_bytes() == database,
    } == {
        "equal": (0, "Equal: 1 input, 2 steps.\n"),
        "other": (
            1,
            False,
            ["input 1, step 1, call pay $.amount: recorded 3, now 4"],
            "The call pay has no recorded result; it may write, so it never runs in a replay.",
        ),
        "refused": (2, True),
        "paid": "3\n",
        "unchanged": True,
    }


def test_a_replay_of_all_sessions_lists_the_first_difference_of_each(tmp_path: Path) -> None:
    folder = paid(tmp_path)

    limited = run_cli(folder, "replay", "--all", "--set", "max_steps=1")
    lines = run_cli(folder, "replay", "--all", "--since", "1h", "--limit", "1", "--json").stdout.splitlines()

    row = 's\tdifferent\t1\t1\tlimit $[0]: recorded nothing, now {"reason": "step_limit", "limit": 1}'
    assert (limited.returncode, limited.stdout.splitlines(), [json.loads(line)["result"] for line in lines[:-1]]) == (
        1,
        [row, "1 of 2 sessions differ, 1 are equal, 0 cannot be replayed."],
        ["equal"],
    )
    assert json.loads(lines[-1]) == {"sessions": 1, "equal": 1, "different": 0, "failed": 0}


def test_a_fork_continues_a_session_from_a_step_in_a_new_one(tmp_path: Path) -> None:
    folder = paid(tmp_path)
    before = run_cli(folder, "events", "s", "--json").stdout

    forked = run_cli(folder, "replay", "s", "--fork", "--from", "2", "--as", "u", "Again", script=["Done."])
    events = [json.loads(line) for line in run_cli(folder, "events", "u", "--json").stdout.splitlines()]
    whole = run_cli(folder, "replay", "s", "--fork", "--from", "1")

    assert {
        "printed": (forked.returncode, forked.stdout.splitlines()[0], "Done." in forked.stdout),
        "without a call": "may make it again" in forked.stderr,
        "events": [each["type"] for each in events][:6],
        "paid": (folder / "paid.txt").read_text(),
        "old": run_cli(folder, "events", "s", "--json").stdout == before,
        "refused": (whole.returncode, "Nothing comes before step 1 of input 1" in whole.stderr),
    } == {
        "printed": (0, "u", True),
        "without a call": False,
        "events": ["user_message", "status", "plan", "tool_call", "tool_result", "user_message"],
        "paid": "3\n",
        "old": True,
        "refused": (2, True),
    }


def test_a_fork_names_the_calls_that_it_leaves_out(tmp_path: Path) -> None:
    folder = paid(tmp_path)
    run_cli(folder, "run", "--session", "s", "Pay 3 again.", script=[asks(("p", "pay", {"amount": 3})), "Paid."])

    forked = run_cli(
        folder, "replay", "s", "--fork", "--input", "2", "--from", "1", "--as", "u", "Again", script=["Done."]
    )
    shown = run_cli(folder, "events", "u").stdout

    assert {
        "warned": " ".join(forked.stderr.split()),
        "recorded": "of s by user, without pay success" in " ".join(shown.split()),
    } == {
        "warned": 'warning: Step 1 of s: pay {"amount": 3} succeeded; the fork may make it again.',
        "recorded": True,
    }


def test_an_unknown_key_is_refused_with_the_nearest_of_the_agent_file_and_its_config(tmp_path: Path) -> None:
    folder = paid(tmp_path)

    done = [run_cli(folder, "replay", "s", "--set", f"{key}=1") for key in ("max_step", "modle")]

    shown = [each.stderr.partition(" Known: ")[0] for each in done]
    assert shown == [
        "error: --set max_step: there is no such key; did you mean 'max_steps'?",
        "error: --set modle: there is no such key; did you mean 'model'?",
    ]
