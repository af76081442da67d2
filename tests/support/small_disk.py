"""A small file system that a test can fill up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a file system at a folder; the test is skipped where this user may not."""
    folder.mkdir(exist_ok=True)
    if not _done("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)):
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield folder
    finally:
        _done("umount", "-l", str(folder))


def fill(folder: Path) -> Path:
    """Write until there is no space left; return the file."""
    file = folder / "filler"
    with file.open("ab", buffering=0) as filler:
        try:
            while filler.write(bytes(512)):
                pass
        except OSError:
            pass
    return file


def _done(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
