"""Resident memory of many sessions in one process, and of a long session's next input: `python -m benchmarks.memory`.

Each row is measured in a new process, which has run another session before, so that its imports do not count.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from benchmarks import harness
from benchmarks.harness import Scale, Table
from benchmarks.long_session import build
from benchmarks.serve_model import SaysTheSame
from benchmarks.work import graph_agent_session
from graph_agent import Session, create_graph_agent
from graph_agent.persistence import open_saver

_SESSIONS, _TURNS = 1_000, 5


def _now_mb() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss / 1e6)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


async def _answer(url: str, inputs: int) -> None:
    async with open_saver(url) as saver:
        session = Session(create_graph_agent(SaysTheSame(), checkpointer=saver), "s")
        for _ in range(inputs):
            await session.run("And now?")


async def _long_input(folder: str, file: str) -> list[float]:
    """Return the memory that a first and a next input of a stored session add at their highest."""
    await _answer(f"sqlite:///{folder}/other.db", 1)
    before, added = _now_mb(), list[float]()
    for inputs in (1, 2):
        await _answer(f"sqlite:///{file}", inputs)
        added.append(_peak_mb() - before)
    return added


async def _many_sessions(folder: str, sessions: str) -> list[float]:
    """Return the memory that sessions leave when they have ended, and that as many after them leave in addition."""
    async with open_saver(f"sqlite:///{folder}/sessions.db") as saver:
        run = graph_agent_session(_TURNS, saver)
        await run("first")
        left = [_now_mb()]

        async def end(session: str) -> None:
            await run(session)  # the result is dropped

        for batch in range(2):
            await asyncio.gather(*(end(f"{batch}-{number}") for number in range(int(sessions))))
            left.append(_now_mb())
    return [left[1] - left[0], left[2] - left[1]]


def _in_new_process(what: str, argument: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.memory", "--child", what, folder, argument]
        found: list[float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


async def tables(scale: Scale) -> list[Table]:
    """Measure each in a new process."""
    first, second = await asyncio.to_thread(_in_new_process, "sessions", str(scale.size(_SESSIONS)))
    rows = [
        [f"{_SESSIONS:,} sessions of {_TURNS} turns at once, after their end", "", f"{first:.0f} MB"],
        [f"{_SESSIONS:,} more, after their end, in addition", "≤ 20 MB", f"{second:.0f} MB"],
    ]
    with tempfile.TemporaryDirectory() as folder:
        for nominal in (1_000, 10_000, 36_000):
            file = Path(folder) / f"{nominal}.db"
            await build(file, scale.size(nominal))
            first, second = await asyncio.to_thread(_in_new_process, "input", str(file))
            rows.append([f"{nominal:,} turns, first input, at its highest", "", f"{first:.0f} MB"])
            rows.append([f"{nominal:,} turns, next input in a process, at its highest", "", f"{second:.0f} MB"])
    note = "Resident memory beyond that of a process that has run another session, in SQLite."
    return [Table("Memory", note, ["work", "aim", "memory"], rows)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        work = {"sessions": _many_sessions, "input": _long_input}[sys.argv[2]]
        print(json.dumps(asyncio.run(work(sys.argv[3], sys.argv[4]))))
    else:
        harness.main(tables, __doc__)
