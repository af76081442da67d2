"""Running sessions on a disk that fills up and is freed again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attack.fleet import Attack, Worker
from tests.attack.report import SCALE

pytestmark = pytest.mark.attack

_ROUND_KB = 1_500
_PAGE_KB = 4

Resize = Callable[[Worker, int], Awaitable[None]]
"""Gives the database room for so many rounds."""


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode == 0


async def test_a_full_file_system_loses_no_acknowledged_input(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _mount("-t", "tmpfs", "-o", f"size={_ROUND_KB}k", "tmpfs", str(folder)):
        pytest.skip("this user may mount no file system; the test with a limit of pages needs none")

    async def resize(_: Worker, rounds: int) -> None:
        assert _mount("-o", f"remount,size={_ROUND_KB * rounds}k", str(folder))

    with ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
        await _fill(Attack("full disk", f"sqlite:///{folder}/s.db", tmp_path), resize)


async def test_a_full_database_loses_no_acknowledged_input(tmp_path: Path) -> None:
    async def resize(worker: Worker, rounds: int) -> None:
        assert "done" in await worker.do("pages", "", str(_ROUND_KB * rounds // _PAGE_KB))

    await _fill(Attack("full database", f"sqlite:///{tmp_path}/s.db", tmp_path), resize)


async def _fill(attack: Attack, resize: Resize) -> None:
    sessions = [f"s{number}" for number in range(12)]
    async with attack.worker() as worker:
        for rounds in range(1, 2 + SCALE):
            await resize(worker, rounds)
            room = True
            while room:
                turns = [attack.turn(worker, session, "pay", "ask", "wave", "talk") for session in sessions]
                room = not any("error" in reply for reply in await asyncio.gather(*turns))
            attack.count("full disks")
            await resize(worker, rounds + 1)
            await asyncio.gather(*(attack.turn(worker, session, "talk") for session in sessions))

    assert await attack.found() == []
