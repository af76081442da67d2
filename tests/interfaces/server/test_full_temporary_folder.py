"""Workers whose temporary folder is full or missing: requests are answered, and limits count per process."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graph_agent.interfaces.server import supervisor as workers
from graph_agent.interfaces.server.admission import worker_folder
from graph_agent.interfaces.server.admission.gate import RequestLimits
from graph_agent.interfaces.server.admission.worker_folder import SharedLimits
from graph_agent.interfaces.server.metrics import ReservedFile
from graph_agent.interfaces.server.problems import ProblemError
from tests.interfaces.server.process import Served, serving
from tests.support.chat_client import CHAT, body
from tests.support.small_disk import fill, small_disk


def refused(limits: RequestLimits, caller: str, begin: Callable[[RequestLimits, str], None]) -> bool:
    try:
        begin(limits, caller)
    except ProblemError:
        return True
    return False


@pytest.fixture(autouse=True)
def no_warnings_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_folder, "_warned", set())


def test_limits_hold_for_this_process_while_the_folder_is_full_and_are_shared_again_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 128) as disk:
        mine, other = SharedLimits(disk, "requests", 2, 3), SharedLimits(disk, "requests", 2, 3)
        mine.enter("a")
        filler = fill(disk)
        # The database may have some space of its own yet.
        for number in range(500):
            mine.count(f"caller {number}")
        while_full = [refused(mine, "a", lambda limits, caller: limits.enter(caller)) for _ in range(2)]
        rated = [refused(mine, "rated", lambda limits, caller: limits.count(caller)) for _ in range(4)]
        mine.leave("a")
        filler.unlink()
        mine.leave("a")
        mine.enter("b")
        free = [refused(other, "a", lambda limits, caller: limits.enter(caller)) for _ in range(2)]

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert (while_full, rated, free) == ([False, True], [False, False, False, True], [False, False])
    assert [f"{disk}" in text and "TMPDIR" in text for text in warnings] == [True]


def test_limits_hold_where_their_file_cannot_be_made(tmp_path: Path) -> None:
    limits = SharedLimits(tmp_path / "gone", "requests", 1)
    with limits.slot("a"):
        second = refused(limits, "a", lambda limits, caller: limits.enter(caller))
    (tmp_path / "gone").mkdir()
    with limits.slot("a"):
        made = (tmp_path / "gone" / "limits.sqlite").exists()

    assert (second, made) == (True, True)


def test_a_file_of_metrics_takes_its_space_before_it_is_mapped(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 160) as disk:
        file: Any = ReservedFile(f"{disk}/counter_1.db")
        [made] = disk.iterdir()
        reserved = made.stat().st_blocks * 512
        filler = fill(disk)
        with pytest.raises(OSError, match="No space left"):
            ReservedFile(f"{disk}/gauge_1.db")
        with pytest.raises(OSError, match="No space left"):
            write(file, 2000)
        read = sum(value for _, value, _ in file.read_all_values())
        filler.unlink()
        write(file, 600)
        again = sum(value for _, value, _ in file.read_all_values())
        left = sorted(path.name for path in disk.iterdir())
        file.close()

    assert (reserved, 400 < read < 600, again, left) == (65536, True, 600.0, ["counter_1.db"])


def write(file: Any, values: int) -> None:
    for number in range(values):
        file.write_value(f"{number:0100}", 1.0, 0.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("full", ["before the start", "under way"])
def test_requests_and_metrics_are_answered_while_the_temporary_folder_is_full(tmp_path: Path, full: str) -> None:
    (tmp_path / "keys").write_text("anna:anna-0123456789abcdef\n")
    options = ["--workers", "2", "--keys-file", str(tmp_path / "keys"), "--set", "requests_per_minute=1000"]
    with small_disk(tmp_path / "disk", 600) as disk:
        environment = {"TMPDIR": str(disk)}
        if full == "before the start":
            # Folders can be made on it, and a few bytes written; whatever counts has no space.
            filler = fill(disk)
            os.truncate(filler, filler.stat().st_size - 8192)
        with serving(tmp_path, *options, environment=environment) as server:
            if full == "under way":
                fill(disk)
            answers = statuses(server, 20)
            with server.http(headers={"x-api-key": "anna-0123456789abcdef"}) as http:
                metrics = http.get("/metrics")
            server.term()
            server.process.wait(60)
            log = server.log.read_text()

    warned = log.count(f"The temporary folder {disk}")
    assert (answers, metrics.status_code, "graph_agent_runs_total" in metrics.text) == ([200] * 20, 200, True)
    assert (1 <= warned <= 2, "Traceback" in log, server.process.returncode) == (True, False, 0)


def statuses(server: Served, count: int) -> list[int]:
    """Of requests over a new connection each, so that all workers have some."""
    found = []
    for number in range(count):
        with server.http(headers={"x-api-key": "anna-0123456789abcdef"}) as http:
            found.append(http.post(CHAT, json=body(f"hi {number}")).status_code)
    return found


def test_a_server_starts_where_no_temporary_folder_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(**options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with workers.sharing(2) as shared:
        pass

    [warning] = [record.getMessage() for record in caplog.records]
    assert (shared, warning.partition(" (")[0]) == (None, "No temporary folder can be used")
