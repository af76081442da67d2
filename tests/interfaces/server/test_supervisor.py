"""The supervisor of a server's workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import uvicorn

from graph_agent.interfaces.server import supervisor
from graph_agent.interfaces.server.supervisor import Supervisor, Worker
from tests.interfaces.server.process import Served, eventually, serving

TIMEOUT_S = 60.0


def spin() -> None:
    """A worker that starts, and answers no health check meanwhile."""
    while True:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the supervisor reads."""
    now = [0.0]
    # Of its module only, because connections read the clock too.
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def worker(clock: list[float]) -> Iterator[Any]:
    found: Any = Worker(uvicorn.Config("not:loaded"), [])
    found.process = get_context("fork").Process(target=spin)
    found.start()
    yield found
    found.process.kill()
    found.process.join()


class Replacing(Supervisor):
    """A supervisor of a given worker, made without its constructor, which takes the signals of this process."""

    def __init__(self, worker: Worker) -> None:
        self.processes, self.replaced = [worker], list[int]()
        self.should_exit = threading.Event()
        self._timeout_s = TIMEOUT_S

    def _start(self) -> Any:
        self.replaced.append(1)
        return None


def stalled_after(worker: Any, clock: list[float], checks: int) -> float:
    """The seconds without progress after so many checks, ten seconds apart."""
    stalled_s: float = 0
    for _ in range(checks):
        clock[0] += 10
        stalled_s = worker.stalled_s()
    return stalled_s


def test_a_starting_worker_that_uses_cpu_time_is_never_stalled(worker: Any, clock: list[float]) -> None:
    stalled: list[float] = []
    process = psutil.Process(worker.pid)
    for _ in range(8):
        used = sum(process.cpu_times()[:2])
        while sum(process.cpu_times()[:2]) <= used:
            time.sleep(0.01)
        stalled.append(stalled_after(worker, clock, 1))

    assert stalled == [0.0] * 8


def test_a_worker_without_progress_is_replaced_after_the_set_time(
    worker: Any, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    watching = Replacing(worker)
    os.kill(worker.pid, signal.SIGSTOP)
    worker.stalled_s()
    # A check counts for a second at most: the supervisor may have been suspended with its worker.
    stalled_s = stalled_after(worker, clock, int(TIMEOUT_S) - 1)
    watching.keep_subprocess_alive()
    before = list(watching.replaced)
    clock[0] += 10

    watching.keep_subprocess_alive()

    assert (stalled_s < TIMEOUT_S, before, watching.replaced) == (True, [], [1])
    assert f"Worker process {worker.pid} made no progress for 60 s" in caplog.text
    assert "'worker_timeout_s' sets this time" in caplog.text


def test_a_killed_worker_is_replaced_at_the_next_check(worker: Any) -> None:
    watching = Replacing(worker)
    worker.process.kill()
    worker.process.join()

    watching.keep_subprocess_alive()

    assert watching.replaced == [1]


def workers_of(server: Served) -> list[psutil.Process]:
    return list(psutil.Process(server.process.pid).children())


def test_workers_are_forked_with_the_imports_and_stalled_ones_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--set", "worker_timeout_s=5") as server:
        first, second = workers_of(server)
        commands = [process.cmdline() for process in (first, second, psutil.Process(server.process.pid))]
        first.suspend()
        eventually(lambda: not first.is_running())
        eventually(lambda: len(workers_of(server)) == 2)
        kept = second in workers_of(server)
        server.term()
        status = server.process.wait(60)

    assert (commands[0] == commands[1] == commands[2], kept, status) == (True, True, 0)


def test_a_hangup_replaces_the_workers_once_their_successors_have_started(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as server, server.http() as http:
        before = workers_of(server)
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(workers_of(server)) == 2 and not set(before) & set(workers_of(server)))
        ready = http.get("/ready").status_code
        server.term()
        status = server.process.wait(60)

    assert (ready, status) == (200, 0)


def test_a_hangup_with_a_broken_agent_file_keeps_the_workers_and_logs_its_fault(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as server, server.http() as http:
        before = workers_of(server)
        (tmp_path / "agent.yaml").write_text("name: parrot\nmodels: x\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "the restart ends here" in server.log.read_text())
        kept, ready = workers_of(server), http.get("/ready").status_code
        log = server.log.read_text()
        server.term()
        server.process.wait(60)

    faults = [line for line in log.splitlines() if "A worker process cannot open the agent: Agent file " in line]
    assert (kept, ready, len(faults), "Traceback" in log) == (before, 200, 1, False)


def test_a_hangup_exchanges_the_keys_of_the_keys_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old:old-0123456789abcdef\n")
    with serving(tmp_path, "--workers", "2", "--keys-file", str(keys)) as server, server.http() as http:
        before = workers_of(server)
        keys.write_text("new:new-0123456789abcdef\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(workers_of(server)) == 2 and not set(before) & set(workers_of(server)))
        names = ("old", "new")
        statuses = [http.get("/v1/models", headers={"x-api-key": f"{each}-0123456789abcdef"}) for each in names]
        server.term()
        server.process.wait(60)

    assert [each.status_code for each in statuses] == [401, 200]


def test_a_normal_stop_removes_the_folder_of_the_workers_and_a_start_those_of_killed_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = SimpleNamespace(TemporaryDirectory=lambda **options: TemporaryDirectory(**{**options, "dir": tmp_path}))
    monkeypatch.setattr(supervisor, "tempfile", here)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    (other := tmp_path / "graph-agent-serve-other").mkdir()  # of another program, without a lock

    def folders() -> set[Path]:
        return set(tmp_path.glob("graph-agent-serve-*")) - {other}

    with serving(tmp_path, "--workers", "2") as server:
        server.kill_all()
    [killed] = folders()
    with serving(tmp_path, "--workers", "2") as server:
        [running] = folders()
        with supervisor.sharing(2) as own:
            both = folders()
        server.term()
        server.process.wait(60)

    assert (killed != running, both, folders(), other.exists()) == (True, {running, own}, set(), True)
