"""Processes edit one file of a workspace in parallel, and are killed in the middle of their edits."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from graph_agent.workspace import workspace_tools
from tests.attack.report import SCALE, SEED, note_faults
from tests.support.parallel_edits import CALLS, FILE, line, values
from tests.support.warm_process import warm_python

pytestmark = pytest.mark.attack

WORKERS = 3
KILLS = 4 * SCALE
ROOT = Path(__file__).parents[2]


async def test_killed_processes_lose_no_edit_that_they_have_reported(tmp_path: Path) -> None:
    rng = random.Random(f"{SEED} edits")
    (tmp_path / FILE).write_text("".join(line(worker, at, 0) for worker in range(WORKERS) for at in range(CALLS)))
    reported = [0] * WORKERS
    found: list[str] = []
    running = [await _started(tmp_path, worker) for worker in range(WORKERS)]
    for _ in range(KILLS):
        victim = rng.randrange(WORKERS)
        # At least one wave of each of its lives, so that the kill is in the middle of edits.
        await _read(running[victim], victim, reported, found)
        await asyncio.sleep(rng.uniform(0, 0.2))
        running[victim].kill()
        await _read(running[victim], victim, reported, found, to_end=True)
        found += _lost(tmp_path, victim, reported)
        running[victim] = await _started(tmp_path, victim)
    for worker, process in enumerate(running):
        process.kill()
        await _read(process, worker, reported, found, to_end=True)
        found += _lost(tmp_path, worker, reported)
    # The next write replaces what a killed one has left.
    [tool] = [tool for tool in workspace_tools(tmp_path) if tool.name == "edit_file"]
    newest = values((tmp_path / FILE).read_text())[0, 0]
    await tool.ainvoke({"path": FILE, "old": line(0, 0, newest), "new": line(0, 0, newest + 1)})

    note_faults("parallel edits of a workspace", "kills", KILLS + WORKERS, found)
    assert (found, os.listdir(tmp_path), min(reported) > 0) == ([], [FILE], True)


async def _started(folder: Path, worker: int) -> asyncio.subprocess.Process:
    arguments = ["-m", "tests.support.parallel_edits", str(folder), str(worker)]
    return await asyncio.create_subprocess_exec(
        warm_python(), *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, limit=2**20
    )


async def _read(
    process: asyncio.subprocess.Process, worker: int, reported: list[int], found: list[str], *, to_end: bool = False
) -> None:
    """Read one report of a process, or all that are left."""
    assert process.stdout is not None
    async with asyncio.timeout(120):
        while text := (await process.stdout.readline()).decode():
            if text.startswith("failed"):
                found.append(text)
            else:
                reported[worker] = int(text)
            if not to_end:
                return
        await process.wait()


def _lost(folder: Path, worker: int, reported: list[int]) -> list[str]:
    """What a killed process has lost: its lines have the value that it reported last, or that of the wave after it."""
    try:
        now = values((folder / FILE).read_text())
    except ValueError as error:
        return [f"a torn line: {error}"]
    if len(now) != WORKERS * CALLS:
        return [f"{len(now)} lines"]
    permitted = (reported[worker], reported[worker] + 1)
    return [
        f"line {at} has {now[worker, at]}, not {permitted}" for at in range(CALLS) if now[worker, at] not in permitted
    ]
