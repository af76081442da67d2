"""The files in which worker processes count together, with their space reserved.

prometheus_client maps sparse files into memory. Writing to a page of such a file that the disk has no space for kills
the process with SIGBUS.
"""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

_FIRST_BYTES = 1 << 16
_OVERHEAD_BYTES = 64
"""More than a value takes beside its key."""


class ReservedFile(MmapedDict):
    """prometheus_client's file of values, all of whose pages are on the disk before they are mapped.

    Args:
        filename: The file.
        read_mode: Whether it is only read.

    Raises:
        OSError: When the disk has no space for it, or for a new value.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        if not read_mode:
            _reserve(filename, _FIRST_BYTES)
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]  # it has no types

    def _init_value(self, key: str) -> None:
        own: Any = self
        if own._used + len(key.encode()) + _OVERHEAD_BYTES > own._capacity:
            _reserve(own._fname, 2 * own._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]  # it has no types


def reserve_space() -> None:
    """Let files of metrics made from now on in this process be `ReservedFile`s."""
    values.MmapedDict = ReservedFile  # type: ignore[attr-defined]  # prometheus_client takes no class of its users


def count_alone() -> None:
    """Let metrics made from now on in this process be kept in it, without files."""
    values.ValueClass = values.MutexValue


def _reserve(filename: str, size: int) -> None:
    """Let a file have a size, and a place on the disk for all of it; otherwise it stays as it was."""
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
