"""Programs in processes that are forked from one with the libraries imported, which saves most of their start."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.warm_imports"])
_READ_AT_START = re.compile(r"LANG(UAGE)?$|LC_|PYTHON")
"""Names of the variables that an interpreter reads when it starts."""
_WITHOUT_EFFECT = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
_ROOT = str(Path(__file__).parents[2])
_READ_WHEN_IMPORTED = ("graph_agent.cli", "graph_agent.server", "prometheus_client")
"""Packages that workers import again: `prometheus_client` selects its storage, which workers share, at its import."""


class WarmProcess:
    """A running `python -m PROGRAM`, with the methods of `subprocess.Popen`.

    The process is not a child of this one.

    Args:
        command: The name of the program's module, and its arguments.
        cwd: The working folder.
        env: All variables.
        stdin: The descriptor of its standard input, or `subprocess.DEVNULL`.
        stdout: The descriptor of its standard output.
        stderr: The descriptor of its standard error.
        leads: Whether it leads a session of its own, whose terminal is its standard input if that is one.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        leads: bool = False,
    ) -> None:
        with open(os.devnull) as nothing:
            given = nothing.fileno() if stdin == subprocess.DEVNULL else stdin
            streams = [_Descriptor(number) for number in (given, stdout, stderr)]
            self._process: ForkServerProcess = _context.Process(
                target=_run, args=(list(command), cwd, dict(env), streams, leads)
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
            raise subprocess.TimeoutExpired("python", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = WarmProcess | subprocess.Popen[bytes]


def start_python(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: int, stdout: int, stderr: int
) -> Process:
    """Start `python -m PROGRAM`, see `WarmProcess`; in a new interpreter where a variable concerns its start."""
    read = {name: value for name, value in env.items() if _READ_AT_START.match(name) and value != _ROOT}
    if any(value != os.environ.get(name) for name, value in read.items() if name not in _WITHOUT_EFFECT):
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr
        )
    return WarmProcess(command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


_CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    order = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(connection, [len(order).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(order)
    sys.exit(int(connection.recv(20)))
"""


@contextmanager
def warm_command() -> Iterator[Path]:
    """Make a command `graph-agent` that starts warm processes; yield its folder.

    A command has the arguments, variables, streams and exit status of its process, and passes on no signals.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        file, address = Path(folder, "graph-agent"), str(Path(folder, "socket"))
        file.write_text(_CLIENT.format(python=sys.executable, address=address))
        file.chmod(0o755)
        listener.bind(address)
        listener.listen()
        thread = threading.Thread(target=_serve_commands, args=(listener,))
        thread.start()
        try:
            yield Path(folder)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve_commands(listener: socket.socket) -> None:
    """Run each command in a thread of its own, until the socket is shut down."""
    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=_run_command, args=(listener.accept()[0],), daemon=True).start()


def _run_command(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as stream:
        size, streams, _, _ = socket.recv_fds(connection, 8, 3)
        arguments, cwd, env = json.loads(stream.read(int.from_bytes(size, "big")))
        stdin, stdout, stderr = streams
        command = ["graph_agent.cli", *arguments]
        process = start_python(command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        for descriptor in streams:
            os.close(descriptor)
        connection.sendall(str(process.wait() % 256).encode())


class _Descriptor:
    """A file descriptor that is passed to the process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.number)

    def __setstate__(self, passed: Any) -> None:
        self.number = passed.detach()


def _run(command: list[str], cwd: Path, env: dict[str, str], streams: list[_Descriptor], leads: bool) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, stream in enumerate(streams):
        os.dup2(stream.number, number)
    for stream in streams:
        os.close(stream.number)
    if leads:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # New ones, because those of the first process had other files.
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # a constant in the stubs  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # the same  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]  # the same  # noqa: SIM115
        2, "w", closefd=False, errors="backslashreplace", buffering=1
    )
    sys.argv = command
    sys.path[:0] = [str(cwd), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if "--workers" in command:
        for name in [name for name in sys.modules if name.startswith(_READ_WHEN_IMPORTED)]:
            del sys.modules[name]
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        atexit._run_exitfuncs()
