"""Warning about an unusable folder of a server's worker processes."""

from __future__ import annotations

import logging
from pathlib import Path

logger = logging.getLogger(__name__)

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
