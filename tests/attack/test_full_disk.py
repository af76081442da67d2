"""Sessions at work on a disk that fills up and gets room again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.fleet import SCALE, Attack

pytestmark = pytest.mark.attack

_ROUND_KB = 1_500


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _mount("-t", "tmpfs", "-o", f"size={_ROUND_KB}k", "tmpfs", str(folder)):
        pytest.skip("this user may mount no file system, and a disk of a known size is needed")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_loses_nothing_that_was_acknowledged(disk: Path, tmp_path: Path) -> None:
    attack = Attack("full disk", f"sqlite:///{disk}/s.db", tmp_path)
    async with attack.worker() as worker:
        for size in range(1, 2 + 2 * SCALE):
            room = True
            while room:
                sessions = [f"s{number}" for number in range(12)]
                kinds = [attack.random.choice(["pay", "ask", "talk"]) for _ in sessions]
                turns = [attack.turn(worker, *each) for each in zip(sessions, kinds, strict=True)]
                replies = await asyncio.gather(*turns)
                room = not any("error" in reply for reply in replies)
            attack.count("full disks")
            assert _mount("-o", f"remount,size={_ROUND_KB * (size + 1)}k", str(disk))
            await asyncio.gather(*(attack.turn(worker, f"s{number}", "talk") for number in range(12)))

    assert await attack.found() == []
