"""The command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support.warm_process import Process, start_python

WITHIN_S = 180


def run_cli(
    folder: Path, *arguments: str, script: list[str] | None = None, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `graph-agent` in a folder, with the replies of a scripted model if given; `given` is its standard input."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    scripted = {"DEBUG_MOCK_RESPONSES": json.dumps(script)} if script is not None else {}
    variables = {**inherited, **scripted, **environment}
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        streams = {"stdin": stdin.fileno(), "stdout": stdout.fileno(), "stderr": stderr.fileno()}
        process = start_python(["graph_agent.cli", *arguments], cwd=folder, env=variables, **streams)
        try:
            status = process.wait(WITHIN_S)
        finally:
            process.kill()
        written = []
        for stream in (stdout, stderr):
            stream.seek(0)
            written.append(stream.read().decode())
        return subprocess.CompletedProcess(arguments, status, *written)


@dataclass
class RunningCli:
    """A running command, and what it prints."""

    process: Process
    stdout: IO[bytes]
    stderr: IO[bytes]

    def printed(self) -> str:
        """Return the standard output until now."""
        return os.pread(self.stdout.fileno(), 1_000_000, 0).decode()

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit status, the standard output and the standard error."""
        status = self.process.wait(WITHIN_S)
        return status, self.printed(), os.pread(self.stderr.fileno(), 1_000_000, 0).decode()


@contextmanager
def running_cli(folder: Path, *arguments: str, script: list[str]) -> Iterator[RunningCli]:
    """Run `graph-agent` in a folder, with the replies of a scripted model, until the context ends."""
    variables = {**os.environ, "DEBUG_MOCK_RESPONSES": json.dumps(script)}
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = start_python(
            ["graph_agent.cli", *arguments],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
        )
        try:
            yield RunningCli(process, stdout, stderr)
        finally:
            process.kill()
            process.wait()
