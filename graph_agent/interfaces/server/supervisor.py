"""Supervises worker processes: replaces dead and stalled ones, and forwards a second stop signal."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import SIGNALS, Process

from graph_agent.base.errors import ConfigError
from graph_agent.interfaces.server.admission.worker_folder import stop_at_once, warn_of_folder

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("graph_agent.server.supervisor")

_POLL_S = 0.1
"""Seconds between two checks whether processes are alive."""
_PAUSE_S = 1.0
"""Maximum seconds that one check adds to the time without progress, so that a suspended machine does not count as a
stalled worker.
"""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop the server."""
# A forked worker has the imports of its supervisor. The system libraries of macOS do not work in a forked process.
_FORKS = sys.platform == "linux"
_PROCESSES: Any = get_context("fork" if _FORKS else "spawn")

_PREFIX = "graph-agent-serve-"
_LOCK = "lock"
"""File of the workers' folder, which the processes of the server lock until they end."""
_MEMORY = ("/dev/shm",)
"""Folders to try if no temporary folder can be created in the default location; on Linux this one is in memory."""
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder in which prometheus_client's processes share their values.

It is read on import.
"""


class Worker(Process):
    """A worker process, which is forked from its supervisor on Linux and spawned elsewhere.

    Args:
        config: uvicorn's configuration.
        sockets: The listening sockets.
        others: The supervisor's connections to the other workers, which a forked process inherits and closes.
    """

    process: BaseProcess  # type: ignore[assignment]  # uvicorn's is a `SpawnProcess`

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], others: Iterable[Connection] = ()) -> None:
        super().__init__(config, sockets)
        self.process = _PROCESSES.Process(target=self.target, args=(sockets,))
        self.ready = False
        """Whether the worker's server had started when it answered the last health check."""
        self._inherited = list(others) if _FORKS else []
        self._supervisor = os.getpid()
        self._asked = False
        """Whether a health check was sent that has no answer yet."""
        self._cpu_s = 0.0
        """CPU seconds of the process at the last check."""
        self._checked = time.monotonic()
        """Time of the last check, on the monotonic clock."""
        self._stalled_s = 0.0
        """Seconds without progress up to the last check."""

    def start(self) -> None:
        """Start the process, and close the worker's end of the connection here. Called in the supervisor."""
        super().start()
        # An end that stays open here would hide the death of the process.
        self.child_conn.close()

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal stops the server. This is the main function of the worker process.

        First closes the connections that it has inherited from the supervisor, and resets the handlers of signals.
        `sockets` are those to listen on.
        """
        for connection in (self.parent_conn, *self._inherited):
            connection.close()
        # A forked worker inherits the handlers of its supervisor.
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        # Created here, because the thread of `always_pong` may come first and create a second one.
        assert not self.server.started
        with contextlib.suppress(KeyboardInterrupt):
            super().target(sockets)

    def always_pong(self) -> None:
        """Answer health checks until the connection to the supervisor ends; wait until the supervisor has ended, then
        send this process SIGTERM.

        Runs in a thread of the worker. A supervisor that was killed cannot stop its workers, which would otherwise keep
        the port.
        """
        with contextlib.suppress(OSError, EOFError):
            super().always_pong()
        # A supervisor that stops closes the connection too.
        while os.getppid() == self._supervisor:
            time.sleep(_POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)

    def stalled_s(self) -> float:
        """Return the seconds without progress so far, and send the next health check. Never blocks.

        An answer to a health check is progress. Before the server has started, so is CPU time, because a start may take
        long. Each call adds at most `_PAUSE_S` seconds.
        """
        now = time.monotonic()
        progress = self._has_answered()
        if not self.ready and (cpu_s := _cpu_s(self.pid)) != self._cpu_s:
            self._cpu_s, progress = cpu_s, True
        self._stalled_s = 0.0 if progress else self._stalled_s + min(now - self._checked, _PAUSE_S)
        self._checked = now
        return self._stalled_s

    def _has_answered(self) -> bool:
        """Read the answers to health checks, which set `ready`, and send the next check unless one is open; return
        whether an answer had arrived.

        False also if the connection to the worker has ended.
        """
        answered = False
        with contextlib.suppress(OSError, EOFError):
            while self.parent_conn.poll():
                self.ready = self.parent_conn.recv()
                answered, self._asked = True, False
            if not self._asked:
                self.parent_conn.send(b"ping")
                self._asked = True
        return answered


class Supervisor(Multiprocess):
    """uvicorn's supervisor of worker processes, with a health check that a busy worker passes, and a second stop
    signal.

    A terminal or an init system signals the workers as well as this process, which signals them again. So only this
    process can count the requests to stop; the workers read its decision with `is_to_stop_at_once`.

    Args:
        config: uvicorn's configuration.
        sockets: The listening sockets.
        shared: The folder that this process shares with its workers; None if none could be created. Without it, every
            second signal stops a worker at once, also one from this process.
        timeout_s: Seconds without progress after which a worker is killed and replaced.
    """

    processes: list[Worker]  # type: ignore[assignment]  # uvicorn's are `Process`

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], shared: Path | None, timeout_s: float
    ) -> None:
        super().__init__(config, sockets)
        self._shared = shared
        self._timeout_s = timeout_s
        self._stop_requests = 0

    def handle_int(self) -> None:
        """Count SIGINT as a request to stop, and handle it as uvicorn does."""
        self._stop_requests += 1
        super().handle_int()

    def handle_term(self) -> None:
        """Count SIGTERM as a request to stop, and handle it as uvicorn does."""
        self._stop_requests += 1
        super().handle_term()

    def handle_ttin(self) -> None:
        """Start a further worker, which raises the number of workers for good. uvicorn calls it on SIGTTIN."""
        self.processes_num += 1
        self.processes.append(self._start())

    def init_processes(self) -> None:
        """Start all workers. uvicorn calls it once."""
        for _ in range(self.processes_num):
            self.processes.append(self._start())

    def keep_subprocess_alive(self) -> None:
        """Kill stalled workers, and replace them and those that have ended, with a warning in the log. uvicorn calls it
        twice a second.

        Does nothing more once the server is to stop. If a worker could not start, the server is stopped, because every
        new one would fail in the same way.
        """
        for index, worker in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if not self._is_lost(worker):
                continue
            # A stalled process does not react to a gentler signal.
            worker.kill()
            worker.join()
            if worker.exitcode == STARTUP_FAILURE:
                logger.error("Worker process %s could not start; the server stops.", worker.pid)
                self.should_exit.set()
                return
            logger.warning("Worker process %s has ended; a new one replaces it.", worker.pid)
            self.processes[index] = self._start()

    def restart_all(self) -> None:
        """Replace each worker by a new one, one after the other, and wait until the new one has started before the old
        one is stopped. uvicorn calls it on SIGHUP.

        If a new worker does not start, or a stop signal arrives, the new worker is killed, and the restart ends with an
        error in the log; the remaining old workers stay.
        """
        for index, worker in enumerate(self.processes):
            new = self._start()
            while not new.ready:
                if self._is_lost(new) or any(number in _STOP_SIGNALS for number in self.signal_queue):
                    new.kill()
                    new.join()
                    logger.error("Worker process %s has not started; the restart ends here.", new.pid)
                    return
                time.sleep(_POLL_S)
            self.processes[index] = new
            worker.terminate()
            worker.join()

    def join_all(self) -> None:
        """Close the listening sockets, and wait until the workers have stopped. uvicorn calls it after it has signalled
        them.

        The second stop signal that this process has received in all makes the workers stop at once; further ones do
        nothing.
        """
        # With the sockets open here, new clients would wait forever instead of being refused.
        for listener in self.sockets:
            listener.close()
        forwarded = False
        while any(worker.process.is_alive() for worker in self.processes):
            self._stop_requests += sum(number in _STOP_SIGNALS for number in self.signal_queue)
            self.signal_queue.clear()
            if self._stop_requests > 1 and not forwarded:
                forwarded = True
                self._stop_at_once()
            time.sleep(_POLL_S)
        super().join_all()

    def _start(self) -> Worker:
        """Start a new worker process, and return it."""
        worker = Worker(self.config, self.sockets, [worker.parent_conn for worker in self.processes])
        worker.start()
        return worker

    def _is_lost(self, worker: Worker) -> bool:
        """Return whether a worker has ended, or has made no progress for `timeout_s` seconds, which is logged."""
        if not worker.process.is_alive():
            return True
        if worker.stalled_s() < self._timeout_s:
            return False
        logger.error(
            "Worker process %s made no progress for %g s and is ended; 'worker_timeout_s' sets this time.",
            worker.pid,
            self._timeout_s,
        )
        return True

    def _stop_at_once(self) -> None:
        """Make every worker stop without waiting for its runs: leave the order in the shared folder, and send each
        worker SIGTERM.
        """
        if self._shared is not None:
            with contextlib.suppress(OSError):
                stop_at_once(self._shared)
        for worker in self.processes:
            if worker.pid is not None and worker.exitcode is None:
                os.kill(worker.pid, signal.SIGTERM)


def _cpu_s(process: int | None) -> float:
    """Return the CPU seconds that a process has used.

    Where `/proc` cannot be read, as on other systems than Linux, the clock is returned, so that the process appears to
    make progress.
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return time.monotonic()
    # The name of the program, in parentheses, may contain spaces.
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def check_workers(workers: int, db: str) -> None:
    """Raise `ConfigError` if several processes are asked for with a database in memory, which they cannot share."""
    if workers > 1 and db == "memory:":
        raise ConfigError(
            f"--workers {workers} with db='memory:': each process would have sessions of its own. Use one process, or "
            "a database that they share, e.g. --db sqlite:///graph_agent.db."
        )


@contextmanager
def sharing(workers: int) -> Iterator[Path | None]:
    """Create the folder that worker processes share, and remove it on exit, as well as the folders that killed servers
    have left; yields its path.

    Yields None if `workers` is 1, and, after a logged warning, if no folder can be created. Otherwise it sets the
    environment variable that makes prometheus_client use the folder, and that stays set on exit.
    """
    folder = _temporary_folder() if workers > 1 else None
    if folder is None:
        yield None
        return
    path = Path(folder.name)
    with folder, contextlib.ExitStack() as lock:
        if sys.platform != "win32":
            _remove_leftovers(path.parent)
            # A full disk: the folder then stays if the server is killed.
            with contextlib.suppress(OSError):
                lock.enter_context(_locked(path))
        os.environ[_METRICS] = folder.name
        try:
            yield path
        finally:
            os.environ.pop(_METRICS, None)  # a later server of this process must not use the removed folder


if sys.platform != "win32":

    @contextmanager
    def _locked(folder: Path) -> Iterator[None]:
        """Lock a folder of workers, which inherit the lock, so that no other server removes it; raise `OSError` if that
        fails.
        """
        with open(folder / "unlocked", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Under this name it is always locked while the server lives.
            os.rename(lock.name, folder / _LOCK)
            yield

    def _remove_leftovers(place: Path) -> None:
        """Remove the folders of killed servers: those of this user whose lock no process holds."""
        for folder in place.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if folder.lstat().st_uid == os.getuid():
                    with open(folder / _LOCK, "rb") as lock:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder)


def _temporary_folder() -> tempfile.TemporaryDirectory[str] | None:
    """Return a new temporary folder, in the system's folder for them or else in memory; closing it deletes the folder.

    None, after a logged warning, if no location permits one.
    """
    first_error: OSError | None = None
    # A full disk is the most likely reason of a failure, so memory is tried next.
    for place in (None, *_MEMORY):
        try:
            return tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True)
        except OSError as error:
            first_error = first_error or error
    assert first_error is not None, "at least one location is tried"
    warn_of_folder(None, first_error)
    return None
