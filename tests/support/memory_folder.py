"""A folder in memory for the files of tests, whose databases would wait for the disk at each commit."""

from __future__ import annotations

import os
import shutil

_ENOUGH = 4 * 2**30
"""Free bytes of a usable folder; containers often have 64 MiB."""


def memory_folder() -> str | None:
    """The path of a writable folder in memory with enough space; None if there is none."""
    folder = "/dev/shm"
    usable = os.path.isdir(folder) and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ENOUGH
    return folder if usable else None
