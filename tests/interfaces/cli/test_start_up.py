"""Commands that need no model load none of the modules that take long to import; a start hides the keys typed early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.support.agents import ECHO_SCRIPT
from tests.support.cli import run_cli
from tests.support.terminal import GATED_TOOLS, WITHIN_S, agent_folder, wait_for

HEAVY = ("langgraph", "langchain_core", "langchain_openai", "langsmith", "openai", "mcp", "prompt_toolkit", "fastapi")
ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
UNUSED_BY_HELP = ("asyncio", "packaging")
"""Modules that no command needs before it runs."""
PROGRAM = """
import sys
from graph_agent.interfaces.cli.app import main
try:
    main()
finally:
    print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "command",
    [
        ["--version"],
        ["--help"],
        ["run", "--help"],
        ["sessions"],
        ["events", "s"],
        ["trace", "s"],
        ["report"],
        ["steer", "-s", "s", "x"],
        ["graph"],
        ["schema"],
        ["new", "x"],
    ],
    ids=" ".join,
)
def test_no_heavy_module_is_imported(tmp_path: Path, command: list[str]) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work")
    if command[0] in ("sessions", "events", "trace", "report", "steer"):
        run_cli(folder, "run", "--session", "s", "hi", script=ECHO_SCRIPT[1:])

    unwanted = (*HEAVY, *UNUSED_BY_HELP) if "--help" in command else HEAVY

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(heavy=unwanted), *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr, bool(done.stdout)) == (0, "\n", True)


SLOW_IMPORT = """
import importlib, os, sys, time
from pathlib import Path

Path("started").write_text(str(os.getpid()))
Path("started").rename("importing")
while not Path("go").exists():
    time.sleep(0.01)
Path(__file__).unlink()
importlib.invalidate_caches()
del sys.modules["typer"]
{then}
"""
"""A module in the place of the first library that the commands import."""
SHELL = "ulimit -c 0; set -m; read line; {command}; echo left $?; read line; fg; echo left $?; read line"


def _default_signals() -> None:
    """Undo that the tests ignore signals, as in the background of a shell; the commands would ignore them, too."""
    for name in ENDING:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


@contextmanager
def slow_start(folder: Path, command: str, then: str = "importlib.import_module('typer')") -> Iterator[Any]:
    """A command on a pseudo-terminal, under a shell that survives it, while it imports a library."""
    (agent_folder(folder, GATED_TOOLS, "work") / "typer.py").write_text(SLOW_IMPORT.format(then=then))
    program = f"{sys.executable} -m graph_agent.cli {command}"
    given = {"DEBUG_MOCK_RESPONSES": '["Hi."]', "XDG_STATE_HOME": str(folder / "state"), "TERM": "xterm"}
    shell: Any = pexpect.spawn(
        "sh",
        ["-c", SHELL.format(command=program)],
        cwd=str(folder),
        env={**os.environ, **given},
        timeout=WITHIN_S,
        encoding="utf-8",
        preexec_fn=_default_signals,
    )
    try:
        shell.before_start = termios.tcgetattr(shell.child_fd)
        shell.send("\n")
        wait_for(folder / "importing")
        yield shell
    finally:
        shell.close(force=True)


def is_restored(shell: Any) -> bool:
    return bool(termios.tcgetattr(shell.child_fd) == shell.before_start)


@pytest.mark.parametrize("command", ["chat", "run", "resume s1", "run hello"])
def test_the_echo_of_keys_is_off_before_the_imports_and_on_again_after_a_failure(tmp_path: Path, command: str) -> None:
    with slow_start(tmp_path, command, then="raise OSError('no typer')") as shell:
        echoes = bool(termios.tcgetattr(shell.child_fd)[3] & termios.ECHO)
        (tmp_path / "go").touch()
        shell.expect("left 1")

        assert (echoes, is_restored(shell)) == (False, True)


@pytest.mark.parametrize("command", ["run -", "sessions"])
def test_other_commands_leave_the_echo_of_keys_on(tmp_path: Path, command: str) -> None:
    with slow_start(tmp_path, command) as shell:
        assert is_restored(shell)


def test_keys_typed_during_the_imports_are_shown_by_the_input_line_only(tmp_path: Path) -> None:
    with slow_start(tmp_path, "chat") as shell:
        shell.send("early")
        (tmp_path / "go").touch()
        shell.expect_exact("/help lists")
        before = shell.before
        shell.expect_exact("early")

    assert "early" not in before


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "at_input_line"),
    [
        *(pytest.param(name, False, id=f"{name}-importing") for name in ENDING),
        *(
            pytest.param(
                name,
                True,
                id=f"{name}-at the input line",
                marks=[] if name in ("SIGINT", "SIGTERM") else pytest.mark.thorough,
            )
            for name in ENDING
        ),
    ],
)
def test_a_signal_that_ends_a_conversation_restores_the_terminal(
    tmp_path: Path, name: str, at_input_line: bool
) -> None:
    number = signal.Signals[name]
    with slow_start(tmp_path, "chat") as shell:
        if at_input_line:
            (tmp_path / "go").touch()
            shell.expect("> ")
        os.kill(int((tmp_path / "importing").read_text()), number)
        shell.expect(f"left {128 + number}")

        assert is_restored(shell)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at_input_line", [False, True], ids=["importing", "at the input line"])
def test_a_suspended_conversation_returns_the_terminal_and_takes_it_again(tmp_path: Path, at_input_line: bool) -> None:
    with slow_start(tmp_path, "chat") as shell:
        if at_input_line:
            (tmp_path / "go").touch()
            shell.expect("> ")
        hidden = termios.tcgetattr(shell.child_fd)
        pid = int((tmp_path / "importing").read_text())
        os.kill(pid, signal.SIGTSTP)
        shell.expect(f"left {128 + signal.SIGTSTP}")
        restored = is_restored(shell)
        shell.send("\n")
        deadline = time.monotonic() + WITHIN_S
        while termios.tcgetattr(shell.child_fd) != hidden:
            assert time.monotonic() < deadline, "the terminal is not taken again"
            time.sleep(0.02)
        os.kill(pid, signal.SIGTERM)
        shell.expect(f"left {128 + signal.SIGTERM}")

        assert (restored, is_restored(shell)) == (True, True)
