"""The command line in a process that is forked from one with the libraries imported, which saves most of its start."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
# Not the commands, Typer, Rich and prometheus_client: these read the environment when they are imported.
_context.set_forkserver_preload(
    [
        "a2a.server.request_handlers",
        "fastapi",
        "graph_agent.a2a.server",
        "graph_agent.agent",
        "graph_agent.compiled",
        "graph_agent.graph",
        "graph_agent.mcp.connections",
        "graph_agent.persistence.open",
        "graph_agent.session.session",
        "graph_agent.session.stream_parts",
        "graph_agent.spec.opening",
        "uvicorn",
    ]
)


class WarmProcess:
    """A running `graph-agent`, with the methods of `subprocess.Popen`.

    The process is not a child of this one. It calls the command's `main`, and does not run `atexit` handlers.

    Args:
        arguments: The command line after `graph-agent`.
        folder: The working folder.
        environment: All variables. Those of the interpreter have no effect, except `PYTHONPATH`.
        streams: The files of standard input, output and error; the latter two are appended to.
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], streams: tuple[Path, Path, Path]
    ) -> None:
        self._process: ForkServerProcess = _context.Process(
            target=_run, args=(list(arguments), folder, dict(environment), streams)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; negative for a signal, None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status.

        Raises:
            TimeoutExpired: After `timeout` seconds.
        """
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("graph-agent", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


def _run(arguments: list[str], folder: Path, environment: dict[str, str], streams: tuple[Path, Path, Path]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, (path, mode) in enumerate(zip(streams, "raa", strict=True)):
        with path.open(mode) as file:
            os.dup2(file.fileno(), number)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing replaced it
    sys.argv = ["graph-agent", *arguments]
    sys.path[:0] = [str(folder), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]

    from graph_agent.cli.app import main  # here, because it reads the environment

    main()
