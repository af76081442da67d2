"""Shared folder of a server's worker processes, with their limits and metrics."""

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
from graph_agent.server.admission.limits import Limits
from graph_agent.server.admission.shared_limits import SharedLimits
from graph_agent.server.process.settings import ServerSettings
from graph_agent.server.process.shared_folder import warn_of_folder

_FOLDER = "GRAPH_AGENT_SERVE_SHARED"
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
        os.environ[_FOLDER] = ""
        yield None
        return
    with folder:
        os.environ[_FOLDER] = os.environ[_METRICS] = folder.name
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


def shared_folder() -> Path | None:
    """Return the folder that this process shares with other workers; None for a single process."""
    folder = os.environ.get(_FOLDER, "")
    return Path(folder) if folder else None


def limits_of(settings: ServerSettings, shared: Path | None) -> tuple[Limits, Limits, Limits]:
    """Return the limits per key of requests, of event streams, and of active A2A tasks.

    Args:
        settings: The limits' values.
        shared: The folder of the processes that share the limits; None for this process alone.
    """
    requests = (settings.concurrent_requests, settings.requests_per_minute)
    if shared is None:
        return Limits(*requests), Limits(settings.event_streams), Limits(settings.concurrent_requests)
    return (
        SharedLimits(shared, "requests", *requests),
        SharedLimits(shared, "streams", settings.event_streams),
        SharedLimits(shared, "tasks", settings.concurrent_requests),
    )
