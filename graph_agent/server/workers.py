"""What the worker processes of one server share: a folder with their limits and what they have counted."""

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
from graph_agent.server.limits import Limits
from graph_agent.server.settings import ServerSettings
from graph_agent.server.shared_folder import warn_of_folder
from graph_agent.server.shared_limits import SharedLimits

_FOLDER = "GRAPH_AGENT_SERVE_SHARED"
_MEMORY = ("/dev/shm",)
"""Where the folder is made when the usual places are full, or may not be written to: Linux keeps it in memory."""
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client looks, when it is imported, whether other processes count beside this one."""


def check_workers(workers: int, db: str) -> None:
    """Check that several processes can serve a database.

    Raises:
        ConfigError: When each would have one of its own.
    """
    if workers > 1 and db == "memory:":
        raise ConfigError(
            f"--workers {workers} with db='memory:': each process would have sessions of its own. Use one process, or "
            "a database that they share, e.g. --db sqlite:///graph_agent.db."
        )


@contextmanager
def sharing(workers: int) -> Iterator[Path | None]:
    """Make the folder, for processes started meanwhile.

    A single process needs none (None) and pays for none. Several go on without one (None), with a warning, where none
    can be made.
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
    why: OSError | None = None
    for place in (None, *_MEMORY):
        try:
            return tempfile.TemporaryDirectory(prefix="graph-agent-serve-", dir=place, ignore_cleanup_errors=True)
        except OSError as error:
            why = why or error
    assert why is not None, "one place is tried at least"
    warn_of_folder(None, why)
    return None


def stop_without_parent() -> None:
    """Have this worker process stop in good order when the one that started it is gone.

    One that was killed can stop nobody, and its workers would hold the port for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent watch", daemon=True).start()


def shared_folder() -> Path | None:
    """The folder that this process shares with other workers; None where it is alone."""
    folder = os.environ.get(_FOLDER, "")
    return Path(folder) if folder else None


def limits_of(settings: ServerSettings, shared: Path | None) -> tuple[Limits, Limits, Limits]:
    """What a key may have of requests, of streams of events, and of A2A tasks at work.

    Args:
        settings: The numbers.
        shared: The folder of the processes that they hold for together; None for this one alone.
    """
    requests = (settings.concurrent_requests, settings.requests_per_minute)
    if shared is None:
        return Limits(*requests), Limits(settings.event_streams), Limits(settings.concurrent_requests)
    return (
        SharedLimits(shared, "requests", *requests),
        SharedLimits(shared, "streams", settings.event_streams),
        SharedLimits(shared, "tasks", settings.concurrent_requests),
    )
