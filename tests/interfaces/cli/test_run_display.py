"""Steps, answers and log records on terminals of any width, and as JSON."""

from __future__ import annotations

import io
import json
import math
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from graph_agent.interfaces.cli.events import event_line
from graph_agent.interfaces.cli.report import part_object
from graph_agent.interfaces.cli.screen import PlainScreen, Wave, draw_calls
from graph_agent.interfaces.cli.terminal import Terminal, log_stream
from graph_agent.session.results import Custom, DelegatePart, Token
from tests.support.agents import ECHO_SCRIPT, asks
from tests.support.cli import run_cli
from tests.support.terminal import GATED_TOOLS, agent_folder, leave, terminal, wait_for

HOSTILE = "no \x1b[2J[red]luck[/red]"


def wave(*names: str) -> Wave:
    """A wave whose calls end after 1.5 s, the last one with an error."""
    shown = Wave()
    for number, name in enumerate(names):
        shown.add({"type": "tool_call", "id": name, "name": name, "step": 2, "ts": "2026-11-22T12:00:00+00:00"})
        status = "error" if number + 1 == len(names) else "success"
        ended = {"ts": "2026-11-22T12:00:01.500000+00:00", "status": status, "content": HOSTILE}
        shown.add({"type": "tool_result", "id": name, "name": name, "step": 2, **ended})
    return shown


def drawn(shown: Wave, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(draw_calls(shown.take(keep_running=False), width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_parallel_calls_are_a_table_with_durations() -> None:
    assert [line.split() for line in drawn(wave("search", "read"), 70)] == [
        ["step", "2:", "2", "calls", "in", "parallel"],
        ["tool_call", "search", "1.5", "s", "✓"],
        ["tool_call", "read", "no", "\\x1b[2J[red]luck[/red]", "1.5", "s", "✗"],
    ]


@pytest.mark.parametrize("width", [8, 20, 40, 200])
def test_no_row_is_wider_than_a_terminal_of_some_width(width: int) -> None:
    lines = drawn(wave("a_tool_with_a_long_name_that_needs_several_rows", "read"), width)

    assert (max(map(len, lines)) <= max(width, 20), "\x1b" in "".join(lines)) == (True, False)


def test_calls_that_wait_are_kept_for_the_rest_of_the_run() -> None:
    shown = wave("search", "read")
    shown.add({"type": "tool_call", "id": "w", "name": "write", "step": 2, "ts": "2026-11-22T12:00:00+00:00"})

    taken = [call.target for call in shown.take(keep_running=True)]

    assert (taken, [*shown.calls]) == (["search", "read"], ["w"])


def test_a_terminal_shows_running_calls_and_then_their_table(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work", "fail")
    script = [asks(("1", "work", {"n": 1}), ("2", "fail", {"n": 1})), "No more actions.", f"Answer {HOSTILE}"]
    with terminal(folder, "run", "--session", "mine", "go", script=script, size=(24, 120)) as run:
        run.expect("session mine")
        wait_for(folder / "began1")
        run.expect("0\\.[1-9] s")
        (folder / "go1").touch()
        run.expect("tool_call work .*✓")
        run.expect("ValueError: no")
        run.expect("✗")
        run.expect_exact("Answer no \\x1b[2J[red]luck[/red]")
        status = leave(run)

    assert status == 0


def test_ctrl_c_at_a_terminal_stops_the_run_of_a_question(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work")
    with terminal(folder, "run", "--session", "mine", "go", script=[asks(("1", "work", {"n": 1})), "never"]) as run:
        wait_for(folder / "began1")
        run.sendintr()
        run.expect("Stopped on request")
        run.expect("--session mine")
        status = leave(run)

    assert status == 130


def test_a_terminated_run_shows_the_cursor_of_the_terminal_again(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work")
    with terminal(folder, "run", "go", script=[asks(("1", "work", {"n": 1}))]) as run:
        run.expect_exact("\x1b[?25l")
        wait_for(folder / "began1")
        run.kill(signal.SIGTERM)
        run.expect_exact("\x1b[?25h")
        status = leave(run)

    assert status == -signal.SIGTERM


def test_log_records_do_not_run_into_streamed_text(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "fail")
    script = [asks(("1", "fail", {"n": 1}), content="Let me look."), "No more actions.", "An answer."]
    with terminal(folder, "run", "-v", "go", script=script) as run:
        text = run.read()

    # The line of a running call is erased before a record is written in its place.
    lines = re.sub(r"[^\n]*\r\x1b\[2K", "", text).replace("\r", "").splitlines()
    records = [line.startswith("20") for line in lines if "INFO" in line]
    assert ("Let me look." in lines, "An answer." in lines, len(records) > 2, all(records)) == (True, True, True, True)


@pytest.mark.parametrize(("same", "found"), [(True, ["ans", "answer\nrecord\n"]), (False, ["record\n", "record\n"])])
def test_records_wait_for_the_end_of_a_line_of_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool, found: list[str]
) -> None:
    path = tmp_path / "out"
    log = path if same else tmp_path / "log"
    with path.open("a") as stdout, log.open("a") as stderr:
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr("sys.stderr", stderr)
        out = Terminal()
        out.print("ans", end="")
        log_stream.write("record\n")
        log_stream.flush()
        logged = [log.read_text()]
        out.print("wer")
        logged.append(log.read_text())

    assert logged == found


@pytest.mark.parametrize(
    ("same", "found"), [(True, "ans\nwarning\nwer\nerror\n"), (False, "answer\n")], ids=["same", "other"]
)
def test_a_line_on_standard_error_ends_an_unfinished_line_of_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool, found: str
) -> None:
    path = tmp_path / "out"
    with path.open("a") as stdout, (path if same else tmp_path / "errors").open("a") as stderr:
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr("sys.stderr", stderr)
        screen = PlainScreen(Terminal(), Terminal(stderr=True))
        screen.stream("ans")
        screen.err.line("warning")
        screen.stream("wer")
        screen.end_stream()
        screen.err.line("error")

    assert path.read_text() == found


@pytest.mark.parametrize("command", ["run", "chat"])
def test_the_warning_of_an_unreachable_server_precedes_the_streamed_answer(command: str, tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "fail")
    with (folder / "agent.yaml").open("a") as file:
        file.write("mcp_servers: {pms: {transport: streamable_http, url: 'http://127.0.0.1:1/mcp'}}\n")
    with terminal(folder, command, *(["go"] if command == "run" else []), script=["An answer."]) as run:
        if command == "chat":
            run.expect_exact("/help lists")
            run.sendline("go")
        run.expect_exact("warning: The MCP server 'pms' is down")
        run.expect_exact("An answer.")
        if command == "chat":
            run.sendline("/quit")
        rest = run.read()

    assert "warning" not in rest


def test_json_lines_are_the_parts_of_the_stream(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: openai:gpt-4o-mini\ntools: ['my_tools:echo']\n")
    (tmp_path / "my_tools.py").write_text("def echo(text: str) -> str:\n    'Repeat.'\n    return text\n")

    done = run_cli(tmp_path, "run", "--session", "s", "--json", "-", script=ECHO_SCRIPT, given="say\nhello\n")

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    types = [line["type"] for line in lines if line["type"] != "event"]
    events = [line["event"]["type"] for line in lines if line["type"] == "event"]
    result = lines[-1]["result"]
    shown = {name: result[name] for name in ("answer", "status", "stop_reason", "results", "interrupts", "error")}
    tokens = "".join(line["text"] for line in lines if line["type"] == "token")
    assert (done.returncode, done.stderr, lines[0], lines[-1]["session_id"]) == (
        0,
        "",
        {"type": "session", "session_id": "s", "format": 1},
        "s",
    )
    assert (set(types), events[0], tokens, shown) == (
        {"session", "progress", "call", "token", "done"},
        "user_message",
        "The echo returned: hello",
        {
            "answer": "The echo returned: hello",
            "status": "COMPLETED",
            "stop_reason": "completed",
            "results": {"call_1": "hello"},
            "interrupts": [],
            "error": "",
        },
    )


def test_parts_with_parts_and_with_any_object_are_json() -> None:
    objects = [
        part_object(DelegatePart("1", "r", DelegatePart("2", "s", Token("x")))),
        part_object(Custom({"at": Path("/x"), "share": math.inf, "data": b"\xff"})),
    ]

    token = {"type": "token", "text": "x", "reports_failure": False, "message_id": ""}
    inner = {"type": "delegate", "id": "2", "target": "s", "part": token}
    assert json.loads(json.dumps(objects, allow_nan=False)) == [
        {"type": "delegate", "id": "1", "target": "r", "part": inner},
        {"type": "custom", "data": {"at": "/x", "share": None, "data": "_w=="}},
    ]


def test_json_of_a_hostile_answer_is_ascii_and_errors_are_objects(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: openai:gpt-4o-mini\n")

    answered = run_cli(tmp_path, "run", "--json", "hi", script=[f"{HOSTILE}\x9b\u202e"])
    failed = run_cli(tmp_path, "run", "--json", "--db", "mysql://x", "hi", script=["x"])

    error = json.loads(failed.stdout)
    assert (answered.stdout.isascii(), "\x1b" in answered.stdout) == (True, False)
    assert (failed.returncode, error["type"], error["kind"]) == (2, "error", "ConfigError")


def test_an_ascii_terminal_prints_escapes_in_place_of_an_error(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: openai:gpt-4o-mini\n")

    done = run_cli(tmp_path, "run", "hi", script=["Grüße …"], PYTHONIOENCODING="ascii", PYTHONUTF8="0")

    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Gr\\xfc\\xdfe \\u2026")


def test_standard_input_is_one_question(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: openai:gpt-4o-mini\n")

    done = run_cli(tmp_path, "run", "-", script=["Yes."], given="one\ntwo\n")
    empty = run_cli(tmp_path, "run", "-", script=["Yes."], given=" \n")

    assert (done.stdout, empty.returncode, empty.stderr) == (
        "Yes.\n",
        2,
        "error: Standard input is empty; `-` takes the question from it.\n",
    )


@pytest.mark.parametrize(
    ("event", "content"),
    [
        (
            {
                "type": "approval_request",
                "calls": [{"id": "1", "name": "write", "arguments": {"n": 1}, "allowed_decisions": ["approve"]}] * 2,
                "delegate": "helper",
                "delegation": "d",
            },
            'approval_request     delegate helper: write {"n": 1}; write {"n": 1}',
        ),
        (
            {"type": "approval_decision", "id": "1", "name": "write", "decision": "approve", "decided_by": "ada"},
            "approval_decision    write: approve by ada",
        ),
        (
            {
                "type": "approval_decision",
                "id": "1",
                "name": "write",
                "decision": "edit",
                "decided_by": "ada",
                "arguments": {"n": 2},
                "edited_name": "append",
                "middleware": "Review",
            },
            'approval_decision    middleware Review: write: edit by ada: append {"n": 2}',
        ),
        (
            {
                "type": "approval_decision",
                "id": "1",
                "name": "write",
                "decision": "reject",
                "decided_by": "ada",
                "message": "too\nrisky",
            },
            "approval_decision    write: reject by ada: too risky",
        ),
        (
            {"type": "loop_detected", "pattern": ["a", "b"], "count": 3, "repeated": "calls"},
            "loop_detected        3 times: a, b (equal calls)",
        ),
        ({"type": "limit", "reason": "step_limit", "limit": 5}, "limit                step_limit: 5"),
        (
            {"type": "delegation_progress", "id": "d", "target": "helper", "content": "reads"},
            "delegation_progress  helper: reads",
        ),
    ],
    ids=["request", "approve", "edit", "reject", "loop", "limit", "delegate"],
)
def test_an_event_is_one_readable_line(event: dict[str, Any], content: str) -> None:
    line = event_line({**event, "seq": 3, "ts": "2026-11-21T10:00:00.000000+00:00", "session_id": "s", "step": 1})

    assert line.partition("step 1  ")[2] == content
