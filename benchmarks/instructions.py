"""Instructions per turn, relative to `create_agent`: `python -m benchmarks.instructions`.

The count does not depend on other processes, so it is exact where times are not. It needs valgrind: one process runs
every variant once under callgrind, which counts only while a session runs. Without valgrind the table is empty.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import harness
from benchmarks.harness import Scale, Table
from benchmarks.work import (
    Opener,
    Session,
    bare_nodes_session,
    create_agent_session,
    graph_agent_session,
    own_saver,
    sessions_trial,
    stock_saver,
)

_CA = "`create_agent`"
_MAKERS: dict[str, Callable[..., Session]] = {
    _CA: create_agent_session,
    "`direct`": functools.partial(graph_agent_session, finalize="direct"),
    "`compose`": functools.partial(graph_agent_session, finalize="compose"),
    "writing tool": functools.partial(graph_agent_session, effect="write"),
    "the four nodes bare": functools.partial(bare_nodes_session, langchain=True),
    "LangGraph alone": functools.partial(bare_nodes_session, langchain=False),
}
_OURS = "`direct`"
_OPENERS: dict[str, Opener] = {"own": own_saver, "LangGraph's": stock_saver}


class Job(NamedTuple):
    """One count."""

    name: str
    turns: int
    sessions: int = 1
    saver: str = ""
    """Key of `_OPENERS`; empty for no saver."""
    reference: tuple[str, int] = (_CA, 0)
    """Name and turns of the job that counts as 1; 0 for the turns of this one."""
    aim: str = ""

    def label(self) -> str:
        """Return the label of its row."""
        turns = f"{self.turns} turns" if self.turns else "an answer without a tool call"
        if self.sessions > 1:
            turns = f"{self.sessions} sessions of {turns}"
        saver = f", {self.saver} SQLite saver" if self.saver else ""
        versus = f", to {self.reference[1]} turns" if self.reference[1] else ""
        return f"{turns}{saver}, {self.name}{versus}"


_VERSION = "3.13"
_ANOTHER = Path(__file__).parents[1] / ".tools" / "pythons" / _VERSION / "bin" / "python"

_JOBS = [
    Job(_CA, 0, sessions=20),
    Job(_OURS, 0, sessions=20, aim="≤ 1.30"),
    *(
        Job(name, turns, aim={_OURS: "≤ 0.75", "`compose`": "≤ 0.80"}.get(name, ""))
        for turns in (10, 50)
        for name in _MAKERS
        if name != "writing tool"
    ),
    Job(_OURS, 20, reference=(_OURS, 0)),
    Job(_OURS, 200, reference=(_OURS, 20), aim="≤ 1.05"),
    Job(_CA, 5, sessions=20),
    Job(_OURS, 5, sessions=20, aim="≤ 0.80"),
    Job(_CA, 50, saver="LangGraph's"),
    Job(_OURS, 50, saver="LangGraph's", aim="≤ 0.75"),
    Job(_OURS, 50, saver="own", aim="≤ 0.40"),
    Job("writing tool", 50, saver="own", aim="≤ 0.50"),
]


def _control(*arguments: str) -> None:
    subprocess.run(
        ["callgrind_control", *arguments, str(os.getpid())], check=True, stdout=subprocess.DEVNULL, timeout=120
    )


async def count_in_this_process(tiny: bool) -> None:
    """Run every job, and have callgrind write one file of counts for each; call it under callgrind."""
    scale = Scale(tiny=tiny)
    for job in _JOBS:
        make = functools.partial(_MAKERS[job.name], scale.size(job.turns))
        trial = sessions_trial(make, opener=_OPENERS.get(job.saver), sessions=scale.size(job.sessions))
        async with trial() as work:
            # Collections count what the work has made, and not the modules or the jobs before.
            gc.collect()
            gc.freeze()
            _control("-i", "on")
            await work()
            _control("-i", "off")
            _control("-d")
            gc.unfreeze()


def counts(scale: Scale, python: str = sys.executable) -> list[float] | None:
    """Return the instructions per turn of every job with a Python; None without valgrind."""
    if shutil.which("valgrind") is None or shutil.which("callgrind_control") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        child = [python, "-m", "benchmarks.instructions", "--child", *(["--tiny"] if scale.tiny else [])]
        done = subprocess.run(
            [*command, *child], env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"The process under callgrind failed:\n{done.stderr[-3000:]}")
        totals = [_total(Path(folder) / f"out.{at}") for at in range(1, len(_JOBS) + 1)]
    units = [scale.size(job.turns or 1) * scale.size(job.sessions) for job in _JOBS]
    return [total / count for total, count in zip(totals, units, strict=True)]


def _total(path: Path) -> int:
    found = re.search(r"^totals: (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
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
    by_key = {(job.name, job.turns, job.sessions, job.saver): mine for job, mine in zip(_JOBS, counted, strict=True)}
    rows: list[list[str]] = []
    for job, mine in zip(_JOBS, counted, strict=True):
        name, turns = job.reference
        saver = job.saver and "LangGraph's"
        reference = by_key[name, turns or job.turns, job.sessions, saver]
        rows.append([job.label(), f"{mine / reference:.2f}", job.aim, f"{mine / 1e6:.2f} M"])
    note = "Counted by callgrind, in user mode; ratios to `create_agent`, with LangGraph's saver where there is one."
    return [Table(title, note, columns, rows), *_with_another_python(scale, counted)]


def _with_another_python(scale: Scale, counted: list[float]) -> list[Table]:
    """Compare with a newer Python, if `make test-pythons` has made its environment."""
    if scale.tiny or not _ANOTHER.exists() or (found := counts(scale, str(_ANOTHER))) is None:
        return []
    rows = [
        [job.label(), f"{theirs / own:.2f}", "", f"{theirs / 1e6:.2f} M"]
        for job, own, theirs in zip(_JOBS, counted, found, strict=True)
    ]
    note = f"The same work with Python {_VERSION}; ratios to the counts above."
    return [Table(f"Instructions per turn, Python {_VERSION}", note, ["work", "ratio", "aim", "instructions"], rows)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(count_in_this_process("--tiny" in sys.argv))
    else:
        harness.main(tables, __doc__)
