"""`graph-agent trace`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.interfaces.server.process import eventually
from tests.support.agents import asks
from tests.support.cli import run_cli, running_cli
from tests.support.terminal import GATED_TOOLS, agent_folder

BOTH = [asks(("a", "echo", {"text": "x"}), ("b", "echo", {"text": "\x1b[2J"})), "Done."]
ASKING = (
    "from langgraph.types import interrupt\n\n"
    'def question(text: str) -> str:\n    """Ask a person."""\n    return str(interrupt(text))\n'
)
TOOLS = 'def echo(text: str) -> str:\n    """Repeat."""\n    return text\n'


def traced(tmp_path: Path) -> Path:
    folder = agent_folder(tmp_path, GATED_TOOLS + TOOLS, "echo")
    run_cli(folder, "run", "--session", "s", "Look\x1b[2J twice " + "x" * 100, script=BOTH)
    run_cli(folder, "run", "--session", "s", "again", script=["Fine."])
    return folder


def test_a_trace_shows_each_input_as_a_tree_on_80_columns(tmp_path: Path) -> None:
    done = run_cli(traced(tmp_path), "trace", "s")

    lines = [re.sub(r"[\d.,]+ (ms|s)\b|\d+(?= \+)|(?<=\+ )\d+|[█▏ ]+$", "…", line) for line in done.stdout.splitlines()]
    heads = [re.sub(r" {2,}.*", "", line.lstrip()) for line in lines]
    assert (done.returncode, max(map(len, done.stdout.splitlines())) <= 80, "\x1b" in done.stdout, heads) == (
        0,
        True,
        False,
        [
            f"input 1: Look\\x1b[2J twice {'x' * 52}…",
            "COMPLETED, …, 2 model calls, 2 calls, … + … tokens",
            "├ plan 1 scripted",
            "├ ✓ echo",
            "├ ✓ echo",
            "└ plan 2 scripted",
            "",
            "input 2: again",
            "COMPLETED, …, 1 model call, 0 calls, … + … tokens",
            "└ plan 1 scripted",
            "",
        ],
    )


def test_one_input_is_shown_by_its_number_from_either_end_and_as_json(tmp_path: Path) -> None:
    folder = traced(tmp_path)

    first, newest, none = [run_cli(folder, "trace", "s", "--json", "--input", number) for number in ("1", "-1", "3")]

    found = [json.loads(done.stdout) for done in (first, newest)]
    assert [(each["input"], each["status"], len(each["children"])) for each in found] == [
        (1, "COMPLETED", 4),
        (2, "COMPLETED", 1),
    ]
    assert (none.returncode, "the session has 2 inputs, and no input 3" in none.stderr) == (2, True)


def test_recorded_requests_are_exported_and_imported_with_their_session(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS + TOOLS, "echo")
    run_cli(folder, "run", "--record", "--session", "s", "token=abcdef-12345", script=["Fine."])
    copied = run_cli(folder, "sessions", "export", "s").stdout
    run_cli(folder, "sessions", "import", "-", "--as", "copy", given=copied)

    lines = run_cli(folder, "events", "copy", "--requests").stdout.splitlines()
    events = run_cli(folder, "events", "copy", "--json").stdout

    assert (lines[0], lines[2:], "model_request" in events) == (
        "request 1, step 1, plan, scripted: 2 messages, 1 tools",
        ["  + human: token=***"],
        False,
    )


def test_calls_that_finished_while_another_waits_are_shown_as_finished(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, f"{GATED_TOOLS}{TOOLS}\n{ASKING}", "echo", "question")
    both = [asks(("a", "question", {"text": "How many?"}), ("b", "echo", {"text": "x"})), "Done."]
    run_cli(folder, "run", "--session", "s", "Ask", script=both)

    shown, newest = [run_cli(folder, "events", "s", "--json", *option) for option in ((), ("--last", "1"))]
    drawn = run_cli(folder, "trace", "s")
    page = run_cli(folder, "sessions", "export", "s", "--html")
    lines = [json.loads(line) for line in run_cli(folder, "sessions", "export", "s").stdout.splitlines()]

    result = json.loads(shown.stdout.splitlines()[-1])
    assert (result["type"], result["name"], result["content"]) == ("tool_result", "echo", "x")
    assert result["ts"] in page.stdout
    assert [line["event"] for line in lines if line["type"] == "event"][-1] == result
    assert [line["message"]["data"]["content"] for line in lines if line["type"] == "message"][-1] == "x"
    assert newest.stdout.splitlines() == shown.stdout.splitlines()[-1:]
    assert [line.split()[1:3] for line in drawn.stdout.splitlines()[3:5]] == [["…", "question"], ["✓", "echo"]]


def test_followed_events_are_printed_once_when_their_calls_have_finished(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, f"{GATED_TOOLS}{TOOLS}\n{ASKING}", "echo", "question")
    both = [asks(("a", "question", {"text": "How many?"}), ("b", "echo", {"text": "x"})), "Done."]
    run_cli(folder, "run", "--session", "s", "Ask", script=both)

    with running_cli(folder, "events", "s", "--follow", "--json", script=[]) as following:
        eventually(lambda: following.printed().count("\n") == 6)
        before = [json.loads(line) for line in following.printed().splitlines()]
        run_cli(folder, "resume", "s", "--answer", "Two", script=["Done."])
        eventually(lambda: '"COMPLETED"' in following.printed())
        shown = [json.loads(line) for line in following.printed().splitlines()]

    kinds = [(each["type"], each.get("id")) for each in shown]
    assert (before, kinds) == (
        shown[:6],
        [
            ("user_message", None),
            ("status", None),
            ("plan", None),
            ("tool_call", "a"),
            ("tool_call", "b"),
            ("tool_result", "b"),
            ("tool_result", "a"),
            ("plan", None),
            ("agent_response", None),
            ("status", None),
        ],
    )
