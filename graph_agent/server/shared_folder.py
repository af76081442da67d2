"""Shares limits, metrics and the order to stop between the worker processes of one server, in a folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

_AT_ONCE = "stop-at-once"

_warned: set[Path | None] = set()


def warn_of_folder(folder: Path | None, error: Exception) -> None:
    """Log, once per process, that it counts requests and metrics on its own instead of together with other workers.

    Args:
        folder: The folder; None if none could be created.
        error: The reason why it cannot be used.
    """
    if folder in _warned:
        return
    _warned.add(folder)
    name = "No temporary folder" if folder is None else f"The temporary folder {folder}"
    can = "can" if folder is None else "cannot"
    logger.warning(
        "%s %s be used (%s): each worker process counts requests and metrics for itself meanwhile. Free some space "
        "there, or set TMPDIR to another folder and start the server again.",
        name,
        can,
        error,
    )


def stop_at_once(shared: Path) -> None:
    """Make `is_to_stop_at_once` true for the workers of a folder.

    Raises:
        OSError: If the folder is not writable.
    """
    (shared / _AT_ONCE).touch()


def is_to_stop_at_once(shared: Path) -> bool:
    """Return whether the supervisor of this worker has received a second stop signal."""
    return (shared / _AT_ONCE).exists()


def is_alive(process: int) -> bool:
    """Return whether a process with this id exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
