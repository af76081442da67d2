"""Worker processes of one server: the check of their number, their shared folder, and their end with the supervisor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graph_agent.errors import ConfigError
from graph_agent.server.shared_folder import FOLDER_VARIABLE, warn_of_folder

_MEMORY = ("/dev/shm",)
"""Fallback locations of the folder if the default ones are full or not writable; on Linux this one is in memory."""
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that makes prometheus_client use files shared by processes; read when it is imported."""


def check_workers(workers: int, db: str) -> None:
    """Check that a number of processes can share a database.

    Raises:
        ConfigError: If several processes would each have their own in-memory database.
    """
    if workers > 1 and db == "memory:":
        raise ConfigError(
            f"--workers {workers} with db='memory:': each process would have sessions of its own. Use one process, or "
            "a database that they share, e.g. --db sqlite:///graph_agent.db."
        )


@contextmanager
def sharing(workers: int) -> Iterator[Path | None]:
    """Create the shared folder and export it to processes started within the context.

    Yields None for a single process, which needs none, and, with a warning, if no folder can be created.
    """
    folder = _temporary_folder() if workers > 1 else None
    if folder is None:
        os.environ[FOLDER_VARIABLE] = ""
        yield None
        return
    with folder:
        os.environ[FOLDER_VARIABLE] = os.environ[_METRICS] = folder.name
        yield Path(folder.name)


def _temporary_folder() -> tempfile.TemporaryDirectory[str] | None:
    first_error: OSError | None = None
    for place in (None, *_MEMORY):
        try:
            return tempfile.TemporaryDirectory(prefix="graph-agent-serve-", dir=place, ignore_cleanup_errors=True)
        except OSError as error:
            first_error = first_error or error
    assert first_error is not None, "at least one location is tried"
    warn_of_folder(None, first_error)
    return None


def stop_without_parent() -> None:
    """Send SIGTERM to this worker process when its supervisor has ended.

    A killed supervisor cannot stop its workers, which would otherwise keep the port.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent watch", daemon=True).start()
