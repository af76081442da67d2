"""Workers of pytest-xdist that are forked from one process that has imported the tests.

The imports of all tests take seven seconds of CPU time, which each worker would spend again. `fork_workers` starts the
process with the imports, and gives each worker a small program in place of Python, which asks that process for a fork
with its own streams.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import pytest

_THREADS_OF_NUMPY = "OPENBLAS_NUM_THREADS"
_CLIENT = """#!{python} -IS
import os, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    socket.send_fds(connection, [sys.argv[-1].encode()], [0, 1, 2])
    # The worker has the streams: execnet waits for the end of its output, also if the worker is killed.
    for stream in (0, 1, 2):
        os.close(stream)
    status = int(connection.recv(20) or b"1")
if status < 0:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(status)
"""


def fork_workers(config: pytest.Config, specs: list[Any]) -> None:
    """Let workers of this machine be forked, for `pytest_xdist_setupnodes`; do nothing where the system has no pidfds.

    Args:
        config: The configuration of the process that distributes the tests.
        specs: The workers' gateways; an own Python stays.
    """
    forked = [spec for spec in specs if spec.popen and not spec.python and not spec.chdir]
    if not forked or not hasattr(os, "pidfd_open"):
        return
    opened = contextlib.ExitStack()
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    address = folder / "socket"
    listener = opened.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(address))
    listener.listen(100)
    client = folder / "python"
    client.write_text(_CLIENT.format(python=sys.executable, address=str(address)))
    client.chmod(0o755)
    # The process ends with the workers, once this one has closed its end.
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.support.forked_workers", str(listener.fileno()), str(theirs.fileno())]
    process = subprocess.Popen(
        [*command, *config.args],
        cwd=config.invocation_params.dir,
        env={**os.environ, _THREADS_OF_NUMPY: "1"},
        pass_fds=(listener.fileno(), theirs.fileno()),
    )
    theirs.close()
    opened.callback(process.wait)
    opened.callback(ours.close)
    atexit.register(opened.close)
    for spec in forked:
        spec.python = str(client)


class _OnlyImports:
    """A plug-in that makes pytest import the tests' modules, and make no tests of them."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        return []


def _import_tests(places: list[str]) -> None:
    unused = ("cacheprovider", "threadexception", "unraisableexception", "xdist")
    # Not captured: a default argument such as `errlog=sys.stderr` would keep a file that is closed afterwards.
    options = ["--collect-only", "-qq", "-s", *(option for name in unused for option in ("-p", f"no:{name}"))]
    output = os.dup(1)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    # A module that cannot be imported is reported by the workers.
    pytest.main([*options, *places], [_OnlyImports()])
    sys.stdout.flush()
    os.dup2(output, 1)
    os.close(output)
    # A process with threads cannot be forked safely.
    del os.environ[_THREADS_OF_NUMPY]
    assert threading.active_count() == 1, threading.enumerate()
    gc.disable()
    gc.collect()
    gc.freeze()


class _Server:
    """Forks a worker for each connection, and answers with its exit status; a worker ends with its connection."""

    def __init__(self, listener: socket.socket, alive: socket.socket) -> None:
        self._listener = listener
        self._alive = alive
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, tuple[int, socket.socket]] = {}
        """Descriptor of a process → its id and its connection."""

    def serve(self) -> str:
        """Fork until the other end of `alive` is closed and all workers have ended; return in each with its code."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the workers end, and then this process
        for each in (self._listener, self._alive):
            self._selector.register(each, selectors.EVENT_READ)
        while self._selector.get_map():
            for key, _ in self._selector.select():
                if key.fileobj is self._alive:
                    for each in (self._listener, self._alive):
                        self._selector.unregister(each)
                        each.close()
                elif key.fileobj is self._listener:
                    if (code := self._fork(self._listener.accept()[0])) is not None:
                        return code
                elif key.data is None:
                    self._end(key.fd)
                else:  # the program that waits for the worker has been killed
                    self._selector.unregister(key.fileobj)
                    signal.pidfd_send_signal(key.data, signal.SIGKILL)
        sys.exit()

    def _fork(self, connection: socket.socket) -> str | None:
        code, streams, _, _ = socket.recv_fds(connection, 65536, 3)
        if not (pid := os.fork()):
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            self._close(connection, *streams)
            return code.decode()
        for stream in streams:
            os.close(stream)
        worker = os.pidfd_open(pid)
        self._workers[worker] = pid, connection
        self._selector.register(worker, selectors.EVENT_READ)
        self._selector.register(connection, selectors.EVENT_READ, worker)
        return None

    def _close(self, connection: socket.socket, *streams: int) -> None:
        """Close in a worker what the server has opened."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in (*streams, *self._workers):
            os.close(descriptor)
        for other in (connection, *(each for _, each in self._workers.values()), self._listener, self._alive):
            other.close()
        self._selector.close()

    def _end(self, worker: int) -> None:
        pid, connection = self._workers.pop(worker)
        for each in (worker, connection):
            with contextlib.suppress(KeyError):
                self._selector.unregister(each)
        os.close(worker)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with connection, contextlib.suppress(OSError):
            connection.sendall(str(status).encode())


if __name__ == "__main__":
    _server = _Server(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3]))
    _import_tests(sys.argv[3:])
    _code = _server.serve()
    sys.argv = ["-c"]
    _main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(_code, _main.__dict__)
