"""The cost of a turn in other frameworks, each with its own scripted model: `python -m benchmarks.peers`.

Each framework is a process in an environment of its own, which is made if it is missing (see
`proofs/pains/environments`); `create_agent` has that of this project. All run the same work, one after the other in
each round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import RATIO_COLUMNS, Cost, Scale, Spread, Table, quartiles, ratio_row
from benchmarks.peer_agents.script import REPLY, RESULT_CHARS
from proofs.pains.environments import python_of

ROOT = Path(__file__).parents[1]
REFERENCE = "`create_agent`"
NAMES = {
    "graph-agent": "graph_agent",
    REFERENCE: "create_agent",
    "deepagents": "deepagents",
    "pydantic-ai": "pydantic_ai",
    "openai-agents": "openai_agents",
    "strands": "strands",
}
"""Shown name → module of `benchmarks.peer_agents`."""
_STORED = (
    "One input on a new agent, whose tool reads; ratios to `create_agent`. Each session is stored as the table of "
    "storage says. pydantic-ai stores none."
)
_OWN = ("graph_agent", "create_agent")
"""The modules that run in this environment."""


class _Framework:
    """The process of one framework."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.stores: str = self._read()["stores"]
        """Where it stores sessions; empty if it stores none."""

    def run(self, turns: int, sessions: int = 1, *, stores: bool = False) -> dict[str, float]:
        """Run one job; return its CPU and wall time, its stored bytes, and the ratio of late turns to early ones."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"turns": turns, "sessions": sessions, "stores": stores}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"A framework ended with status {self._process.wait()}; its message is above.")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def started(module: str, tree: Path = ROOT) -> Iterator[_Framework]:
    """Start the process of a framework for a `with` block.

    Args:
        module: Module of `benchmarks.peer_agents`.
        tree: The checkout whose source it runs, which for this framework may be an older one.
    """
    python = sys.executable if module in _OWN else str(python_of(module))
    command = [python, "-m", "benchmarks.peer_worker", module]
    # The source of another checkout comes before the installed one.
    env = None if tree == ROOT else {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(
        command, cwd=tree, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield _Framework(process)
        finally:
            process.kill()


Frameworks = Mapping[str, _Framework]


def rounds_of(
    frameworks: Frameworks, scale: Scale, turns: int, sessions: int = 1, *, stores: bool = False
) -> dict[str, list[dict[str, float]]]:
    """Run a job with each framework in turn, in rounds whose order rotates; return the costs of each."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in frameworks}
    names = list(frameworks)
    since, rounds = time.monotonic(), 0
    while scale.more(rounds, since):
        for at in range(len(names)):
            name = names[(at + rounds) % len(names)]
            found[name].append(frameworks[name].run(turns, sessions, stores=stores))
        rounds += 1
    return found


def _rows(label: str, found: Mapping[str, list[dict[str, float]]], per: int) -> list[list[str]]:
    costs = {name: [Cost(each["cpu"], each["wall"]) for each in runs] for name, runs in found.items()}
    return [ratio_row(f"{label}, {name}", costs, name, REFERENCE, per=per) for name in costs]


async def tables(scale: Scale) -> list[Table]:
    """Compare all frameworks; at the smallest scale, those of this environment."""
    with ExitStack() as stack:
        chosen = {name: module for name, module in NAMES.items() if module in _OWN or not scale.tiny}
        frameworks = {name: stack.enter_context(started(module)) for name, module in chosen.items()}
        for framework in frameworks.values():
            framework.run(scale.size(20))  # the first run pays for its imports
        turns: list[list[str]] = []
        for nominal in (10, 50, 200):
            found = rounds_of(frameworks, scale, scale.size(nominal))
            turns += _rows(f"{nominal} turns", found, scale.size(nominal))
        late = {name: Spread.of([run["late"] for run in runs]) for name, runs in found.items()}
        sessions = scale.size(100)
        many = _rows("100 sessions of 5 turns", rounds_of(frameworks, scale, scale.size(5), sessions), 5 * sessions)
        storing = {name: framework for name, framework in frameworks.items() if framework.stores}
        stored: list[list[str]] = []
        sizes: list[list[str]] = []
        for nominal in (50, 200):
            size = scale.size(nominal)
            found = rounds_of(storing, scale, size, stores=True)
            stored += _rows(f"{nominal} turns", found, size)
            for name, framework in storing.items():
                kilobytes = found[name][0]["stored"] / size - len(REPLY) - RESULT_CHARS
                sizes.append([f"{nominal} turns, {name}", framework.stores, f"{kilobytes / 1024:.1f}"])
    note = (
        "One input on an agent that has answered before, nothing stored; ratios to `create_agent`. "
        "Each framework has its own scripted model."
    )
    growth = [
        [f"turns 180–199 to turns 10–29, {name}", f"{spread.median:.2f}", quartiles(spread)]
        for name, spread in late.items()
    ]
    return [
        Table("Turns of other frameworks", note, RATIO_COLUMNS, turns),
        Table("Stored turns of other frameworks", _STORED, RATIO_COLUMNS, stored),
        Table("Sessions of other frameworks", "At the same time; nothing is stored.", RATIO_COLUMNS, many),
        Table(
            "Growth of other frameworks", "CPU time, within a run of 200 turns.", ["work", "ratio", "quartiles"], growth
        ),
        Table(
            "Storage of other frameworks",
            "KB per turn beyond the messages, of all files of a session. pydantic-ai stores none.",
            ["work", "where", "KB/turn"],
            sizes,
        ),
    ]


if __name__ == "__main__":
    harness.main(tables, __doc__)
