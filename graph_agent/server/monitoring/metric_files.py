"""Metric files shared by worker processes, with their disk space reserved.

prometheus_client maps sparse files into memory. If the disk is full, writing to an unallocated page of such a file
kills the process with SIGBUS.
"""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

_FIRST_BYTES = 1 << 16
_OVERHEAD_BYTES = 64
"""Upper bound of the bytes that a value takes in addition to its key."""


class ReservedFile(MmapedDict):
    """prometheus_client's file of values, with all pages allocated on disk before they are mapped.

    Args:
        filename: The file.
        read_mode: Whether the file is opened for reading only.

    Raises:
        OSError: If the disk has no space for the file or for a new value.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        if not read_mode:
            _reserve(filename, _FIRST_BYTES)
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]  # prometheus_client is untyped

    def _init_value(self, key: str) -> None:
        own: Any = self
        if own._used + len(key.encode()) + _OVERHEAD_BYTES > own._capacity:
            _reserve(own._fname, 2 * own._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]  # prometheus_client is untyped


def reserve_space() -> None:
    """Use `ReservedFile` for metrics that this process creates from now on."""
    values.MmapedDict = ReservedFile  # type: ignore[attr-defined]  # prometheus_client has no setting for the class


def count_alone() -> None:
    """Keep metrics that this process creates from now on in memory, without files."""
    values.ValueClass = values.MutexValue


def _reserve(filename: str, size: int) -> None:
    """Extend a file to a size with all bytes allocated on disk; restore the old size on failure."""
    file = os.open(filename, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        before = os.fstat(file).st_size
        try:
            missing = size - before
            while missing > 0:
                missing -= os.write(file, bytes(missing))
        except OSError:
            os.truncate(filename, before)
            if before == 0:
                os.unlink(filename)
            raise
    finally:
        os.close(file)
