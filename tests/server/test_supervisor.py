"""The supervisor of a server's workers."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.supervisors import multiprocess

from graph_agent.server.process.supervisor import Supervisor
from tests.server.process import eventually


def swallow(pipe: Connection, received: Path) -> None:
    """A worker that accepts a liveness check, and never answers."""
    pipe.recv()
    received.touch()
    time.sleep(600)


def test_a_worker_that_is_killed_while_it_is_asked_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[str] = []
    config = uvicorn.Config("not:loaded", timeout_worker_healthcheck=60)
    worker: Any = multiprocess.Process(config, [])
    worker.process = get_context("spawn").Process(target=swallow, args=(worker.child_conn, tmp_path / "asked"))
    worker.start()
    new: Any = SimpleNamespace(start=lambda: replaced.append("started"))
    monkeypatch.setattr(multiprocess, "Process", lambda config, sockets: new)
    # Made without its constructor, which takes the signals of this process.
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.config, supervisor.sockets, supervisor.processes = config, [], [worker]
    supervisor.should_exit = threading.Event()

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(supervisor.keep_subprocess_alive)
        eventually((tmp_path / "asked").exists)
        worker.process.kill()
        looking.result(30)

    assert (replaced, supervisor.processes) == (["started"], [new])
