"""A process that has imported everything and forks for each job, so that hundreds of killed processes are cheap."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ForkServer:
    """Runs jobs of `tests.support.fault_jobs`, a process each.

    Args:
        process: The server's process.
        errors: Where the jobs' errors go.
    """

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def begin(self, job: str, **arguments: Any) -> None:
        """Start a job, without waiting for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([job, arguments]) + "\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """Wait for the oldest job's end; its exit code, -9 when it was killed."""
        assert self._process.stdout is not None
        code = int(self._process.stdout.readline())
        assert code in (0, -9), self._errors.read_text()
        return code

    def run(self, job: str, **arguments: Any) -> int:
        """Run a job to its end; its exit code, -9 when it was killed."""
        self.begin(job, **arguments)
        return self.end()


@contextmanager
def fork_server(folder: Path) -> Iterator[ForkServer]:
    """A server, as long as the context lasts.

    Args:
        folder: Where to keep the jobs' errors.
    """
    errors = folder / "errors"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.support.fault_server"]
    with (
        errors.open("w") as to,
        subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=to, text=True
        ) as process,
    ):
        try:
            yield ForkServer(process, errors)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _serve() -> None:
    from tests.support import fault_jobs

    fault_jobs.warm_up()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a process with threads cannot be forked safely"
    for line in sys.stdin:
        job, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            _work(getattr(fault_jobs, job), arguments)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _work(job: Any, arguments: dict[str, Any]) -> None:
    try:
        job(**arguments)
    except BaseException:  # noqa: BLE001 - the test that asked for the job shows it
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _serve()
