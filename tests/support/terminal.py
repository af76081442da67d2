"""The command line on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
from pexpect.fdpexpect import fdspawn

from tests.support.warm_process import WarmProcess

WITHIN_S = 180
"""Maximum seconds to wait for one piece of output, on a busy machine too."""

GATED_TOOLS = '''
import asyncio
from pathlib import Path


async def work(n: int) -> str:
    """Work until the file `go<n>` exists."""
    Path(f"began{n}").touch()
    while not Path(f"go{n}").exists():
        await asyncio.sleep(0.01)
    return "worked"


async def fail(n: int) -> str:
    """Fail."""
    raise ValueError("no \\x1b[2J[red]luck[/red]")


async def block() -> str:
    """Block the event loop."""
    import time

    Path("blocking").touch()
    while True:
        time.sleep(0.05)
'''

APPROVED_TOOLS = '''
from langgraph.types import interrupt


def write_file(path: str, text: str) -> str:
    """Write a file, once a person has approved it."""
    request = {"name": "write_file", "args": {"path": path, "text": text}, "description": "Check the path."}
    review = {"action_name": "write_file", "allowed_decisions": ["approve", "edit", "reject"]}
    answer = interrupt({"action_requests": [request], "review_configs": [review]})
    return f"decided: {answer['decisions'][0]}"


def ask(question: str) -> str:
    """Ask a person."""
    return f"answered: {interrupt(question)}"
'''


def agent_folder(folder: Path, module: str, *tools: str) -> Path:
    """Write an agent file with the tools of a module `my_tools`, and return its folder."""
    names = json.dumps([f"my_tools:{tool}" for tool in tools])
    (folder / "agent.yaml").write_text(f"name: helper\nmodel: openai:gpt-4o-mini\ntools: {names}\n")
    (folder / "my_tools.py").write_text(module)
    return folder


class Conversation(fdspawn):  # type: ignore[misc]  # it has no types
    """A program on a pseudo-terminal of `size` rows and columns."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str], size: tuple[int, int]) -> None:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, size)
        self.process = WarmProcess(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs, leads=True)
        os.close(theirs)
        super().__init__(ours, timeout=WITHIN_S, encoding="utf-8")

    def sendintr(self) -> None:
        """Type Ctrl-C."""
        self.send("\x03")

    def sendeof(self) -> None:
        """Type Ctrl-D."""
        self.send("\x04")

    def kill(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)


@contextmanager
def terminal(
    folder: Path, *arguments: str, script: list[str] | None, size: tuple[int, int] = (40, 100), **environment: str
) -> Iterator[Any]:
    """Run `graph-agent` on a pseudo-terminal, with a scripted model if there is a script."""
    scripted = {"DEBUG_MOCK_RESPONSES": json.dumps(script)} if script is not None else {}
    given = {**os.environ, **scripted, "XDG_STATE_HOME": str(folder / "state")}
    given |= {"TERM": "xterm", "NO_COLOR": "1", **environment}
    conversation = Conversation(["graph_agent.cli", *arguments], folder, given, size)
    try:
        yield conversation
    finally:
        conversation.process.kill()
        conversation.process.wait()
        conversation.close()


def leave(conversation: Any) -> int:
    """Wait for the end of the program, and return its exit status."""
    conversation.expect(pexpect.EOF)
    status: int = conversation.process.wait(WITHIN_S)
    return status


def wait_for(file: Path) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + WITHIN_S
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} does not appear"
        time.sleep(0.02)
