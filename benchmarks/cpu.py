"""CPU time of a turn in a few minutes, as `make bench-quick` compares it: `python -m benchmarks.cpu`.

Instructions do not show what caches, allocations and system calls cost. These comparisons are few and short; the other
modules have more of them. If the repository has a tag of a release, or `BENCH_AGAINST` names a commit, its turns are
compared, too: its source runs in a process of its own, with the packages of this environment.
"""

from __future__ import annotations

import functools
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import harness
from benchmarks.growth import answering
from benchmarks.harness import RATIO_COLUMNS, Scale, Table, ratio_row
from benchmarks.long_session import build
from benchmarks.peers import ROOT, rounds_of, started
from benchmarks.streaming import BARE, stream_trial
from benchmarks.turns import saved_trials
from benchmarks.work import (
    Opener,
    bare_nodes_session,
    create_agent_session,
    graph_agent_session,
    own_saver,
    sessions_trial,
    stock_saver,
)

_CA = "create_agent"
_OWN = "graph-agent"
_FLOOR = "floor: the four nodes bare"
"""The same graph and saver, whose nodes only call the model and the tool and append messages and events."""
_TOKENS = 1_000
_AIMS = {10: "≤ 0.80", 50: "≤ 0.68", 200: "≤ 0.56"}
_SAVED_AIMS = {
    "own SQLite saver, reading tool": "≤ 0.34",
    "own SQLite saver, writing tool": "≤ 0.40",
    "LangGraph's SQLite saver, reading tool": "≤ 0.75",
}
"""Aims of 50 stored turns, by the names of `saved_trials`."""


async def turns(scale: Scale) -> Table:
    """Compare turns without a saver, and turns of 50 with each."""
    rows: list[list[str]] = []
    for nominal, aim in _AIMS.items():
        size, repeats = scale.size(nominal), max(1, 50 // nominal)
        trial = functools.partial(sessions_trial, repeats=repeats)
        trials = {
            _CA: trial(functools.partial(create_agent_session, size)),
            _OWN: trial(functools.partial(graph_agent_session, size)),
            _FLOOR: trial(functools.partial(bare_nodes_session, size, langchain=True)),
        }
        costs = await harness.interleaved(trials, scale)
        label, per = f"{nominal} turns without a saver", size * repeats
        rows.append(ratio_row(label, costs, _OWN, _CA, aim=aim, per=per))
        rows.append(ratio_row(f"{label}, {_FLOOR}", costs, _FLOOR, _CA, per=per))
    size, sessions = scale.size(5), scale.size(100)
    costs = await harness.interleaved(
        {
            _CA: sessions_trial(functools.partial(create_agent_session, size), sessions=sessions),
            _OWN: sessions_trial(functools.partial(graph_agent_session, size), sessions=sessions),
        },
        scale,
    )
    label = "100 sessions of 5 turns at the same time, without a saver"
    rows.append(ratio_row(label, costs, _OWN, _CA, aim="≤ 0.85", per=sessions * size))
    size = scale.size(50)
    stored = saved_trials(size, scale)
    bare = functools.partial(bare_nodes_session, size, langchain=True)
    own: Opener = functools.partial(own_saver, url=scale.url)
    stored[f"own SQLite saver, {_FLOOR}"] = sessions_trial(bare, opener=own)
    stored[f"LangGraph's SQLite saver, {_FLOOR}"] = sessions_trial(bare, opener=stock_saver)
    costs = await harness.interleaved(stored, scale)
    rows += [
        ratio_row(f"50 turns, {name}", costs, name, _CA, aim=_SAVED_AIMS.get(name, ""), per=size)
        for name in stored
        if name != _CA
    ]
    tokens = scale.size(_TOKENS)
    costs = await harness.interleaved({name: stream_trial(name, tokens) for name in (_CA, _OWN, BARE)}, scale)
    for floor, name, aim in (("", _OWN, "≤ 0.75"), (", floor: a bare graph", BARE, "")):
        label = f"an answer of 1,000 tokens{floor}"
        rows.append(ratio_row(label, costs, name, _CA, aim=aim, per=tokens, unit="token"))
    note = (
        "As the tables of `turns`, `sessions` and `streaming`; ratios to `create_agent`, on LangGraph's saver if "
        "stored. A floor is what LangGraph, LangChain's model call and the same saver cost without this framework: a "
        "graph whose nodes call the model and the tool, and append messages and events."
    )
    return Table("CPU time, in short", note, RATIO_COLUMNS, rows)


async def long_history(scale: Scale) -> Table:
    """Compare the next input of a long session with that of a short one."""
    with tempfile.TemporaryDirectory() as folder:
        trials = {}
        for nominal in (300, 3_000):
            file = Path(folder) / f"{nominal}.db"
            await build(file, scale.size(nominal))
            trials[f"{nominal:,} turns"] = answering(f"sqlite:///{file}")
        costs = await harness.interleaved(trials, scale)
    few, many = trials
    row = ratio_row(f"{many}, to {few}", costs, many, few, aim="≤ 2", unit="input")
    note = "A stored session gets its next input, without calls, in SQLite."
    return Table("The next input of a long session, in short", note, RATIO_COLUMNS, [row])


def since_release(scale: Scale) -> list[Table]:
    """Compare turns with those of the last release, or of the commit in `BENCH_AGAINST`; empty if there is neither."""
    commit = os.environ.get("BENCH_AGAINST") or _git("describe", "--tags", "--abbrev=0").decode().strip()
    if not commit or scale.tiny:
        return []
    rows: list[list[str]] = []
    with ExitStack() as stack:
        tree = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "graph_agent", "nodes", "benchmarks"))) as source:
            source.extractall(tree, filter="data")
        both = {
            "now": stack.enter_context(started("graph_agent")),
            "then": stack.enter_context(started("graph_agent", tree)),
        }
        for size, stores in ((10, False), (50, False), (200, False), (50, True)):
            costs = {
                name: [harness.Cost(run["cpu"], run["wall"]) for run in runs]
                for name, runs in rounds_of(both, scale, size, stores=stores).items()
            }
            label = f"{size} turns, {'own SQLite saver, reading tool' if stores else 'no saver'}"
            rows.append(ratio_row(label, costs, "now", "then", aim="≤ 1.03", per=size))
    return [Table(f"CPU time since {commit}", "Ratios to the same work of that commit.", RATIO_COLUMNS, rows)]


def _git(*arguments: str) -> bytes:
    """Return the output of a git command in this checkout; empty if it fails, or there is no git."""
    if shutil.which("git") is None:
        return b""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False).stdout


async def tables(scale: Scale) -> list[Table]:
    """Run all comparisons of this module."""
    return [await turns(scale), await long_history(scale), *since_release(scale)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
