"""Instructions per turn, relative to `create_agent`: `python -m benchmarks.instructions`.

The count does not depend on other processes, so it is exact where times are not. It needs valgrind: one process runs
every variant once under callgrind, which counts only while a session runs. Without valgrind the table is empty.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Scale, Table
from benchmarks.work import Session, bare_nodes_session, create_agent_session, graph_agent_session

_CA = "create_agent"
_MAKERS: dict[str, Callable[[int], Session]] = {
    _CA: create_agent_session,
    "direct": functools.partial(graph_agent_session, finalize="direct"),
    "compose": functools.partial(graph_agent_session, finalize="compose"),
    "four nodes bare": functools.partial(bare_nodes_session, langchain=True),
    "LangGraph alone": functools.partial(bare_nodes_session, langchain=False),
}
_AIMS = {"direct": "≤ 0.75", "compose": "≤ 0.80"}
_LONG = 200
_JOBS: list[tuple[str, int, int]] = [
    *((name, turns, 1) for turns in (10, 50) for name in _MAKERS),
    ("direct", 20, 1),
    ("direct", _LONG, 1),
    (_CA, 5, 20),
    ("direct", 5, 20),
]
"""Variant, turns and concurrent sessions of each count."""


def _control(*arguments: str) -> None:
    subprocess.run(
        ["callgrind_control", *arguments, str(os.getpid())], check=True, stdout=subprocess.DEVNULL, timeout=120
    )


async def count_in_this_process(tiny: bool) -> None:
    """Run every job, and have callgrind write one file of counts for each; call it under callgrind."""
    scale = Scale(tiny=tiny)
    for name, turns, sessions in _JOBS:
        make = _MAKERS[name](scale.size(turns))
        await make("warm-up")
        _control("-i", "on")
        await asyncio.gather(*(make(str(at)) for at in range(scale.size(sessions))))
        _control("-i", "off")
        _control("-d")


def counts(scale: Scale) -> list[float] | None:
    """Return the instructions per turn of every job; None without valgrind."""
    if shutil.which("valgrind") is None or shutil.which("callgrind_control") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        child = [sys.executable, "-m", "benchmarks.instructions", "--child", *(["--tiny"] if scale.tiny else [])]
        done = subprocess.run(
            [*command, *child], env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"The process under callgrind failed:\n{done.stderr[-3000:]}")
        totals = [_total(Path(folder) / f"out.{at}") for at in range(1, len(_JOBS) + 1)]
    jobs = ((scale.size(turns), scale.size(sessions)) for _, turns, sessions in _JOBS)
    return [total / turns / sessions for total, (turns, sessions) in zip(totals, jobs, strict=True)]


def _total(path: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"No count in {path}.")
    return int(found[1])


async def tables(scale: Scale) -> list[Table]:
    """Count all jobs."""
    columns = ["work", "ratio", "aim", "instructions"]
    title = "Instructions per turn"
    counted = counts(scale)
    if counted is None:
        return [Table(title, "Not counted: valgrind is not installed on this machine.", columns, [])]
    by_job = dict(zip(_JOBS, counted, strict=True))
    rows: list[list[str]] = []
    for (name, turns, sessions), mine in by_job.items():
        ratio, aim = mine / by_job.get((_CA, turns, sessions), mine), _AIMS.get(name, "")
        label = f"{turns} turns, {name}" if sessions == 1 else f"{sessions} sessions of {turns} turns, {name}"
        if turns == _LONG:
            ratio, aim, label = mine / by_job[(name, 20, 1)], "≤ 1.05", f"{label}, to 20 turns"
        elif turns == 20:
            continue
        elif sessions > 1:
            aim = "≤ 0.80" if name != _CA else ""
        rows.append([label, f"{ratio:.2f}", aim, f"{mine / 1e6:.2f} M"])
    note = "Counted by callgrind, without a saver; ratios to `create_agent`, and of 200 turns to 20."
    return [Table(title, note, columns, rows)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(count_in_this_process("--tiny" in sys.argv))
    else:
        harness.main(tables, __doc__)
