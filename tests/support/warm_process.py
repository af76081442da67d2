"""Programs in processes that are forked from one with the libraries imported, which saves most of their start."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
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
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing import process as _processes
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.warm_process", "tests.support.warm_imports"])
_server: Any = forkserver._forkserver
_starting, _sharing = threading.Lock(), threading.Lock()
_READ_AT_START = re.compile(r"LANG(UAGE)?$|LC_|PYTHON")
"""Names of the variables that an interpreter reads when it starts."""
_WITHOUT_EFFECT = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
_ROOT = str(Path(__file__).parents[2])
_PYTHON = sys.executable
"""The interpreter; a test may set `sys.executable` to `warm_python()`."""
_READ_WHEN_IMPORTED = ("graph_agent.cli", "graph_agent.interfaces", "graph_agent.server", "prometheus_client")
"""Packages that workers import again: `prometheus_client` selects its storage, which workers share, at its import."""


_REWRITTEN = ("graph_agent.testing",)
"""The plugin of pytest: pytest warns of a plugin that was imported before it."""


_given: list[str] = []
"""In a warm process, the path that `warm_python` returned where it was started."""
ONLY_OUR_PLUGIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "graph_agent.testing.plugin"}
"""Variables of a pytest that is started: the other plugins of this environment are not a user's, and load slowly."""


@functools.cache
def offer_server() -> str:
    """Let other processes use the fork server of this one, see `use_server`; return the address of the offer."""
    return str(_listen(_answer_offers))


def _listen(serve: Callable[[socket.socket], None]) -> Path:
    """Serve a socket in a new folder by a thread, until this process ends; return its path."""
    opened = contextlib.ExitStack()
    address = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "socket"
    listener = opened.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(address))
    listener.listen(100)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    opened.callback(listener.shutdown, socket.SHUT_RDWR)
    atexit.register(opened.close)
    return address


def _answer_offers(listener: socket.socket) -> None:
    """Start the fork server at the first request, and send its address and key, until the socket is shut down."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as connection:
                _server.ensure_running()
                # The key is new in Python 3.14.
                place = _server._forkserver_address, getattr(_server, "_forkserver_authkey", b"").hex()
                connection.sendall(json.dumps(place).encode())


def use_server(offer: str) -> None:
    """Start processes with the fork server of another process, which ends with that one.

    Workers of pytest-xdist share one, because its imports take five seconds of CPU time.
    """

    def ensure_running() -> None:
        resource_tracker.ensure_running()
        with _sharing:
            if _server._forkserver_address is not None:
                return
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(offer)
                with connection.makefile("rb") as answer:
                    address, key = json.load(answer)
            # A process holds this descriptor, so that a server of its own parent lives as long as it.
            _server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
            _server._forkserver_authkey = bytes.fromhex(key)
            _server._forkserver_address = address

    _server.ensure_running = ensure_running


class WarmProcess:
    """A running program of Python, with the methods of `subprocess.Popen`.

    The process is not a child of this one.

    Args:
        command: The program, and its arguments: a module's name, a file that ends in `.py`, or `-c` and code.
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
                target=_run, args=(list(command), cwd, dict(env), streams, leads, warm_python())
            )
            with _starting:
                self._process.start()
                # Each start polls the other processes; two threads that poll one process lose its exit status.
                _processes._children.discard(self._process)  # type: ignore[attr-defined]  # not in the stubs
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def sentinel(self) -> int:
        """A descriptor that is ready when the process has ended."""
        return self._process.sentinel

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
            # The fork server may have seen the end, and not reported it yet.
            with contextlib.suppress(ProcessLookupError):
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
    """Start a program of Python, see `WarmProcess`; in a new interpreter where a variable concerns its start."""
    read = {name: value for name, value in env.items() if _READ_AT_START.match(name) and value != _ROOT}
    if read.get("LC_CTYPE") == "C.UTF-8":  # set by the interpreter of a command that was started without a locale
        del read["LC_CTYPE"]
    if any(value != os.environ.get(name) for name, value in read.items() if name not in _WITHOUT_EFFECT):
        is_module = command[0] != "-c" and not command[0].endswith(".py")
        return subprocess.Popen(
            [_PYTHON, *(["-m"] if is_module else []), *command],
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    return WarmProcess(command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    order = json.dumps([{program!r} + sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(connection, [len(order).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(order)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
    status = int(connection.recv(20))
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
_COMMANDS = {"python": [], "graph-agent": ["-m", "graph_agent.cli"], "pytest": ["-m", "pytest"]}
"""The commands of `warm_commands`, and what each gives to Python before its own arguments."""


@functools.cache
def warm_commands() -> Path:
    """Make commands `python`, `graph-agent` and `pytest` that start warm processes; return their folder.

    Returns when the first process has started, which waits for the imports.

    A command has the arguments, variables, streams and exit status of its process. It passes SIGINT and SIGTERM on, and
    the process is killed if the command is. An interpreter's options other than `-m` and `-c` start a new interpreter.
    """
    address = _listen(_serve_commands)
    for name, program in _COMMANDS.items():
        file = address.with_name(name)
        file.write_text(_CLIENT.format(python=_PYTHON, address=str(address), program=program))
        file.chmod(0o755)
    # The imports take longer than a client waits for its server, on a busy machine.
    first = _context.Process(target=os.getpid)
    with _starting:
        first.start()
        _processes._children.discard(first)  # type: ignore[attr-defined]  # not in the stubs
    first.join()
    return address.parent


def warm_python() -> str:
    """Return the path of a `python` that starts warm processes, for `sys.executable` in a command."""
    return _given[0] if _given else str(warm_commands() / "python")


def _serve_commands(listener: socket.socket) -> None:
    """Run each command in a thread of its own, until the socket is shut down."""
    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=_run_command, args=(listener.accept()[0],), daemon=True).start()


def _run_command(connection: socket.socket) -> None:
    with connection, contextlib.suppress(ConnectionError):
        size, streams, _, _ = socket.recv_fds(connection, 8, 3)
        try:
            if len(size) < 8:
                return  # The client was killed before it had sent its command.
            arguments, cwd, env = json.loads(_receive(connection, int.from_bytes(size, "big")))
            process = _start_command(arguments, Path(cwd), env, *streams)
        finally:
            for descriptor in streams:
                os.close(descriptor)
        sentinels = [process.sentinel] if isinstance(process, WarmProcess) else []
        while (status := process.poll()) is None:
            if connection in wait([connection, *sentinels], None if sentinels else 0.05):
                if number := connection.recv(1):
                    process.send_signal(number[0])
                else:
                    process.kill()
                    process.wait()
        connection.sendall(str(status).encode())


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the client ended before it had sent its whole command")
        received += part
    return received


def _start_command(
    arguments: list[str], cwd: Path, env: dict[str, str], stdin: int, stdout: int, stderr: int
) -> Process:
    first = arguments[0] if arguments else ""
    if first not in ("-m", "-c") and not first.endswith(".py"):
        command = [_PYTHON, *arguments]
        return subprocess.Popen(command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
    program = arguments[first == "-m" :]
    return start_python(program, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


class _Descriptor:
    """A file descriptor that is passed to the process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.number)

    def __setstate__(self, passed: Any) -> None:
        self.number = passed.detach()


def _run(
    command: list[str], cwd: Path, env: dict[str, str], streams: list[_Descriptor], leads: bool, executable: str
) -> None:
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
    sys.executable = executable  # what this process starts is warm too
    _given.append(executable)
    sys.argv = command
    first = str((cwd / command[0]).parent) if command[0].endswith(".py") else str(cwd)
    sys.path[:0] = [first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    again = _READ_WHEN_IMPORTED if "--workers" in command else _REWRITTEN if command[0] == "pytest" else ()
    # The names lie on thousands of pages, which a process that only looks at them copies.
    for name in [name for name in sys.modules if name.startswith(again)] if again else ():
        del sys.modules[name]
    try:
        if command[0] == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            sys.argv = ["-c", *command[2:]]
            exec(command[1], main.__dict__)
        elif command[0].endswith(".py"):
            runpy.run_path(command[0], run_name="__main__")
        else:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        atexit._run_exitfuncs()
