"""A process that has imported everything and forks for each job, so that hundreds of killed processes are cheap."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tests.support.warm_process import start_python


class ForkServer:
    """Runs jobs of `tests.support.fault_jobs`, a process each.

    Args:
        orders: The server's standard input.
        ended: The server's standard output.
        errors: Where the jobs' errors go.
    """

    def __init__(self, orders: TextIO, ended: TextIO, errors: Path) -> None:
        self._orders = orders
        self._ended = ended
        self._errors = errors

    def begin(self, job: str, **arguments: Any) -> None:
        """Start a job, without waiting for its end."""
        self._orders.write(json.dumps([job, arguments]) + "\n")
        self._orders.flush()

    def end(self) -> int:
        """Wait for the oldest job's end; its exit code, -9 when it was killed."""
        code = int(self._ended.readline())
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
    (jobs, begin), (end, results) = os.pipe(), os.pipe()
    with errors.open("w") as to, open(begin, "w") as orders, open(end) as ended:
        process = start_python(
            ["tests.support.fault_server"], cwd=root, env=os.environ, stdin=jobs, stdout=results, stderr=to.fileno()
        )
        os.close(jobs)
        os.close(results)
        try:
            yield ForkServer(orders, ended, errors)
        finally:
            orders.close()
            process.wait(120)


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
