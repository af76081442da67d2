"""The command line, as a process of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO

import pytest

from graph_agent.base._internal.extras import pip_install
from tests.interfaces.server.process import eventually
from tests.support.agents import ECHO_SCRIPT, asks
from tests.support.cli import WITHIN_S, RunningCli, run_cli, running_cli
from tests.support.warm_process import warm_python

HOTEL = Path(__file__).parents[3] / "examples" / "hotel" / "agent.yaml"
AGENT = """
name: echoing
model: openai:gpt-4o-mini
tools: ["my_tools:echo"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "my_tools.py").write_text("def echo(text: str) -> str:\n    'Say it again.'\n    return text\n")
    return tmp_path


def test_a_question_shows_its_steps_and_streams_its_answer(folder: Path) -> None:
    done = run_cli(folder, "run", "say hello", script=ECHO_SCRIPT)

    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "\n> say hello\n  step 1: tool_call echo\nThe echo returned: hello\n",
        "",
    )


def test_a_session_continues_in_another_process(folder: Path) -> None:
    run_cli(folder, "run", "--session", "mine", "one", script=["No more actions.", "One."])
    run_cli(folder, "run", "--session", "mine", "two", script=["No more actions.", "Two."])
    run_cli(folder, "run", "--session", "other", "one", script=["No more actions.", "One."])

    listed = run_cli(folder, "sessions", "--quiet")

    assert (listed.stdout, (folder / "graph_agent.db").is_file()) == ("other\nmine\n", True)


def test_run_without_a_question_starts_a_conversation(folder: Path) -> None:
    done = run_cli(
        folder,
        "run",
        "--session",
        "mine",
        script=["No more actions.", "One.", "No more actions.", "Two."],
        given="one\n\ntwo\n",
    )

    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "One.\nTwo.\n",
        "Go on with this conversation: --session mine\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--config", "missing.yaml", "hi"], "missing.yaml"),
        (["run", "--config", "typo.yaml", "hi"], "unknown field 'modle'"),
        (["run", "--db", "mysql://x", "hi"], "no such kind of database"),
        (["run", "hi"], "OPENAI_API_KEY"),
        (["run", "--config", ".", "hi"], "it is a folder; name a YAML file"),
    ],
    ids=["missing", "typo", "db", "no key", "folder"],
)
def test_user_errors_are_printed_without_a_traceback(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "typo.yaml").write_text(AGENT + "modle: x\n")

    done = run_cli(folder, *arguments)

    assert (done.returncode, done.stderr.startswith("error: "), message in done.stderr, "Traceback" in done.stderr) == (
        2,
        True,
        True,
        False,
    )


def test_an_exhausted_script_names_its_step(folder: Path) -> None:
    done = run_cli(folder, "run", "hi", script=["No more actions."])

    message = "error: The script of DEBUG_MOCK_RESPONSES has 1 reply and was asked for a 2nd."
    assert (done.returncode, done.stderr.startswith(message)) == (2, True)


def test_a_failed_run_prints_the_error_with_the_provider_s_words_and_exits_with_1(folder: Path) -> None:
    (folder / "agent.yaml").write_text(AGENT + "config: {model_retries: 0}\n")
    # Nothing listens there.
    address = "http://127.0.0.1:9/v1"

    done = run_cli(folder, "run", "hi", OPENAI_API_KEY="x", OPENAI_BASE_URL=address)
    as_json = run_cli(folder, "run", "--json", "hi", OPENAI_API_KEY="x", OPENAI_BASE_URL=address)

    error, cause = done.stderr.splitlines()
    result = json.loads(as_json.stdout.splitlines()[-1])["result"]
    assert (done.returncode, error, cause.startswith("cause: Connection error: "), f"cause: {result['cause']}") == (
        1,
        "error: The model's server cannot be reached; try again later.",
        True,
        cause,
    )
    assert result["cause"] not in json.dumps(result["events"])


def run_into(stdout: IO[bytes], folder: Path, command: str) -> tuple[int, str]:
    """Run a command in an interpreter of its own, whose end flushes the output; return its status and its errors."""
    environment = {**os.environ, "DEBUG_MOCK_RESPONSES": '["Hello."]'}
    program = [sys.executable, "-m", "graph_agent.cli", *command.split()]
    done = subprocess.run(
        program, cwd=folder, env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=WITHIN_S, check=False
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", ["schema", "sessions export mine", "run hi"])
def test_an_output_on_a_full_disk_is_one_line_of_error(command: str, folder: Path) -> None:
    run_cli(folder, "run", "--session", "mine", "hi", script=["Hello."])

    with open("/dev/full", "wb") as full:
        ended = run_into(full, folder, command)

    assert ended == (2, "error: No space left on device.\n")


def test_an_export_into_a_closed_pipe_ends_without_a_traceback(folder: Path) -> None:
    run_cli(folder, "run", "--session", "mine", "hi", script=["Hello."])
    read, write = os.pipe()
    os.close(read)

    with os.fdopen(write, "wb") as closed:
        ended = run_into(closed, folder, "sessions export mine")

    assert ended == (1, "")


def test_a_failed_run_reports_finished_calls_on_standard_error(folder: Path) -> None:
    (folder / "agent.yaml").write_text(AGENT.replace("name:", "hooks: [failing.Failing]\nname:", 1))
    (folder / "failing.py").write_text(
        "from graph_agent import LoopHook\n\nclass Failing(LoopHook):\n"
        "    async def should_run(self, response, request):\n"
        "        if not response.calls:\n            raise ValueError('no such thing')\n"
        "        return False, None\n"
    )

    done = run_cli(folder, "run", "hi", script=[asks(("1", "echo", {"text": "a"})), "No more actions."])

    line = "The hook Failing failed: ValueError: no such thing"
    logged, _, reported = done.stderr.partition("error: ")
    assert (done.returncode, done.stdout, logged.splitlines()[0], logged.splitlines()[-2:], reported) == (
        1,
        "\n> hi\n  step 1: tool_call echo\n",
        line,
        ["        raise ValueError('no such thing')", "    ValueError: no such thing"],
        f"{line}\nDone: echo.\n",
    )


def test_an_empty_database_is_reported(folder: Path) -> None:
    (folder / "graph_agent.db").touch()

    done = run_cli(folder, "sessions")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "There are no sessions yet.\n")


@pytest.mark.parametrize(
    "command",
    [["sessions"], ["steer", "-s", "mine", "x"], ["follow-up", "-s", "mine", "x"], ["abort", "-s", "mine"]],
    ids=lambda command: command[0],
)
def test_a_missing_database_is_reported_and_not_created(folder: Path, command: list[str]) -> None:
    done = run_cli(folder, *command, "--db", "sqlite:///typo.db")

    missing = "error: db='sqlite:///typo.db': there is no database typo.db"
    assert (done.returncode, done.stderr.partition(";")[0], list(folder.glob("*.db*"))) == (2, missing, [])


def test_the_version_is_printed(folder: Path) -> None:
    done = run_cli(folder, "--version")

    assert (done.returncode, done.stdout) == (0, f"graph-agent {version('graph-agent')}\n")


def test_messages_to_an_idle_session_are_queued_for_its_next_input(folder: Path) -> None:
    run_cli(folder, "run", "--session", "mine", "one", script=["No more actions.", "One."])

    queued = [
        run_cli(folder, "steer", "--session", "mine", "Be brief.").stdout,
        run_cli(folder, "follow-up", "--session", "mine", "and then?").stdout,
    ]
    replies = ["No more actions.", "Two.", "No more actions.", "And."]
    done = run_cli(folder, "run", "--session", "mine", "two", script=replies)

    assert (queued, done.stdout) == (
        [
            "Queued for session mine, with its next input: Be brief.\n",
            "Queued for session mine, after the answer to its next input: and then?\n",
        ],
        "\n> two\n  steering: Be brief.\nTwo.\n\n> and then?\nAnd.\n",
    )


def test_a_command_whose_extra_is_missing_names_it(folder: Path) -> None:
    (folder / "uvicorn.py").write_text("raise ModuleNotFoundError('away', name='uvicorn')")

    done = run_cli(folder, "a2a", PYTHONPATH=os.pathsep.join([str(folder), str(HOTEL.parents[2])]))

    problem, command = "error: graph-agent a2a needs the extra 'server' (uvicorn is missing)", pip_install()
    assert (done.returncode, done.stderr.startswith(f"{problem}: {command} ")) == (2, True)


@pytest.mark.parametrize(
    ("question", "steps", "answer"),
    [
        (
            "Check availability for January 17-19",
            ["step 1: tool_call pms.get_availability"],
            "from Sunday 17 January 2027 to Tuesday 19 January 2027 (2 nights)",
        ),
        (
            "one night in Hanukkah",
            ["step 1: tool_call calendar.resolve_holiday", "step 2: tool_call pms.get_availability"],
            "from Friday 4 December 2026 to Saturday 5 December 2026 (1 night)",
        ),
        (
            "Check availability for Hanukkah and also next weekend",
            [
                "step 1: tool_call calendar.resolve_holiday",
                "step 1: tool_call calendar.resolve_date_hint",
                "step 2: tool_call pms.get_availability",
                "step 2: tool_call pms.get_availability",
            ],
            "from Friday 27 November 2026 to Sunday 29 November 2026 (2 nights)",
        ),
    ],
    ids=["explicit", "holiday", "two at once"],
)
def test_the_hotel_answers_its_questions(tmp_path: Path, question: str, steps: list[str], answer: str) -> None:
    done = run_cli(
        tmp_path,
        "run",
        "--config",
        str(HOTEL),
        "--today",
        "2026-11-21",
        question,
        HOTEL_DB=str(tmp_path / "hotel.db"),
    )

    taken = [line.strip() for line in done.stdout.splitlines() if line.startswith("  step")]
    assert (done.returncode, taken, answer in done.stdout) == (0, steps, True)


WORKING = "import time, pathlib\ndef work() -> str:\n    'Work.'\n    pathlib.Path('log').open('a').write('w')\n"
WORKING += "    while not pathlib.Path('go').exists(): time.sleep(0.01)\n    return 'worked'\n"
WORK = '{"tool_calls": [{"id": "1", "name": "work", "arguments": {}}]}'


@pytest.fixture
def working(tmp_path: Path) -> Path:
    (tmp_path / "agent.yaml").write_text(AGENT.replace("echo", "work"))
    (tmp_path / "my_tools.py").write_text(WORKING)
    return tmp_path


@contextmanager
def running_chat(folder: Path, *script: str) -> Iterator[RunningCli]:
    """`graph-agent run`, in the middle of its first wave."""
    log = folder / "log"
    with running_cli(folder, "run", "--session", "mine", "do it", script=[WORK, *script]) as running:
        eventually(lambda: running.process.poll() is not None or (log.exists() and log.read_text()), WITHIN_S)
        yield running


STOPPED = "\n> do it\n  step 1: tool_call work\nStopped on request\n\nStarted, outcome unknown: work.\n"


def test_ctrl_c_aborts_the_run_and_the_session_continues(working: Path) -> None:
    with running_chat(working) as running:
        running.process.send_signal(signal.SIGINT)
        # The tool's thread hangs to the end.
        status, stdout, stderr = running.end()

    done = run_cli(working, "run", "--session", "mine", "and now?", script=["No more actions.", "Here I am."])

    assert (stdout, stderr, status, done.stdout) == (
        STOPPED,
        "Go on with this conversation: --session mine\n",
        130,
        "\n> and now?\nHere I am.\n",
    )


def test_a_second_ctrl_c_ends_the_wait(folder: Path) -> None:
    slow = "import asyncio, pathlib\nasync def work() -> str:\n    'Work.'\n    pathlib.Path('log').write_text('w')\n"
    slow += "    try:\n        await asyncio.sleep(600)\n    finally:\n        pathlib.Path('stopping').touch()\n"
    slow += "        await asyncio.sleep(600)\n"
    (folder / "agent.yaml").write_text(AGENT.replace("echo", "work"))
    (folder / "my_tools.py").write_text(slow)
    with running_chat(folder) as running:
        process = running.process
        process.send_signal(signal.SIGINT)
        while not (folder / "stopping").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        status, _, _ = running.end()

    assert status == 130


def test_another_process_steers_and_follows_up(working: Path) -> None:
    with running_chat(working, "No more actions.", "Done.", "No more actions.", "And.") as running:
        replies = [
            run_cli(working, "steer", "Be brief.").stdout,
            run_cli(working, "follow-up", "--session", "mine", "and then?").stdout,
        ]
        (working / "go").touch()
        status, stdout, _ = running.end()

    assert (replies, status, stdout) == (
        [
            "Queued for session mine, before its next step: Be brief.\n",
            "Queued for session mine, after its current answer: and then?\n",
        ],
        0,
        "\n> do it\n  step 1: tool_call work\n  steering: Be brief.\nDone.\n\n> and then?\nAnd.\n",
    )


def test_another_process_aborts(working: Path) -> None:
    with running_chat(working) as running:
        aborted = run_cli(working, "abort")
        eventually(lambda: running.printed() == STOPPED, WITHIN_S)
        (working / "go").touch()
        status, _, _ = running.end()
    again = run_cli(working, "abort", "--session", "mine")

    assert (aborted.returncode, aborted.stdout, status, again.returncode, again.stdout) == (
        0,
        "Session mine is stopping.\n",
        1,
        1,
        "Session mine is not running.\n",
    )


def test_a_session_that_a_killed_process_left_is_aborted(working: Path) -> None:
    with running_chat(working) as running:
        running.process.kill()
        running.process.wait()

    aborted = run_cli(working, "abort", "--session", "mine", script=["never"])

    assert (aborted.returncode, aborted.stdout) == (0, "Session mine is stopping.\n")


@pytest.mark.parametrize("command", ["steer", "follow-up"])
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--session", "nobody", "x"], "There is no session 'nobody'"),
        (["--session", "nobody", " "], "The message is empty"),
        (["--session", "nobody", "--db", "memory:", "x"], "is this process's alone"),
    ],
)
def test_invalid_control_commands_are_one_line_errors(
    folder: Path, command: str, arguments: list[str], complaint: str
) -> None:
    (folder / "graph_agent.db").touch()

    done = run_cli(folder, command, *arguments)

    assert (done.returncode, done.stderr.count("\n"), complaint in done.stderr) == (2, 1, True)


def test_one_ctrl_c_ends_a_run_whose_coroutine_blocks_the_event_loop(working: Path) -> None:
    tool = working / "my_tools.py"
    tool.write_text(tool.read_text().replace("def work", "async def work"))
    with running_chat(working) as running:
        running.process.send_signal(signal.SIGINT)
        status, _, stderr = running.end()

    blocked = "something blocks the event loop, such as a coroutine of a tool that makes a blocking call"
    assert (status, stderr) == (130, f"Stopped at once: {blocked}.\n")


def test_one_ctrl_c_ends_a_conversation_that_waits_for_a_line(folder: Path) -> None:
    terminal, theirs = pty.openpty()
    command = [warm_python(), "-m", "graph_agent.cli", "run", "--db", "memory:"]
    script = {"DEBUG_MOCK_RESPONSES": json.dumps(["never"])}
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **script}, stdin=theirs, stdout=theirs, stderr=theirs, process_group=0
    )
    try:
        shown = b""
        while b"> " not in shown.replace(b"\x1b[0m", b""):
            shown += os.read(terminal, 1000)
        process.send_signal(signal.SIGINT)
        status = process.wait(WITHIN_S)
    finally:
        process.kill()
        os.close(theirs)
        os.close(terminal)

    assert status == 130


def test_a_command_to_the_running_session_needs_one(working: Path) -> None:
    run_cli(working, "run", "--session", "mine", "hi", script=["Hello."])

    done = run_cli(working, "steer", "Be brief.")

    assert (done.returncode, "No session is running. Name one with --session" in done.stderr) == (2, True)


def test_an_empty_session_id_is_refused(working: Path) -> None:
    done = run_cli(working, "run", "--session", "", "hi", script=["Hello."])

    assert (done.returncode, "the id of a session is not empty" in " ".join(done.stderr.split())) == (2, True)


def test_a_conversation_in_memory_is_not_offered_for_later(working: Path) -> None:
    done = run_cli(working, "run", "--db", "memory:", script=["Hello."], given="hi\n")

    assert (done.returncode, "Hello." in done.stdout, done.stderr) == (0, True, "")
