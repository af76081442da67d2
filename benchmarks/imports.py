"""The CPU time of importing the package, relative to the imports it is built on: `python -m benchmarks.imports`."""

from __future__ import annotations

import compileall
import functools
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import graph_agent
from benchmarks import harness
from benchmarks.harness import Cost, Scale, Spread, Table, quartiles

_BASE = "`langgraph.graph` and `langchain_core.messages`"
_NAMES = "graph-agent, every public name"
_IMPORTS = {
    _BASE: "import langgraph.graph, langchain_core.messages",
    "graph-agent, the package": "import graph_agent",
    _NAMES: "import graph_agent; [getattr(graph_agent, name) for name in graph_agent.__all__]",
    "graph-agent, an agent built": (
        "from graph_agent import ScriptedChatModel, create_graph_agent; create_graph_agent(ScriptedChatModel(['x']))"
    ),
    "`create_agent`, the function": "from langchain.agents import create_agent",
}
_CODE = "import time; t = time.process_time(); {}; print(time.process_time() - t)"


def _import(seconds: list[float], code: str) -> None:
    done = subprocess.run([sys.executable, "-c", _CODE.format(code)], capture_output=True, text=True, check=True)
    seconds.append(float(done.stdout))


@asynccontextmanager
async def _trial(seconds: list[float], code: str) -> AsyncIterator[harness.Work]:
    async def work() -> None:
        _import(seconds, code)

    yield work


async def tables(scale: Scale) -> list[Table]:
    """Import each in turn, each time in a new process."""
    # As `pip install` does; an editable install has no bytecode where PYTHONDONTWRITEBYTECODE is set.
    package = Path(graph_agent.__file__).parent
    for folder in (package, package / "nodes"):
        compileall.compile_dir(folder, quiet=1)
    seconds: dict[str, list[float]] = {name: [] for name in _IMPORTS}
    await harness.interleaved(
        {name: functools.partial(_trial, seconds[name], code) for name, code in _IMPORTS.items()}, scale
    )
    costs = {name: [Cost(cpu, cpu) for cpu in taken] for name, taken in seconds.items()}
    rows: list[list[str]] = []
    for name, taken in seconds.items():
        ratio: Spread = harness.cpu_ratio(costs, name, _BASE)
        each = f"{1000 * statistics.median(taken):.0f} ms"
        rows.append([name, f"{ratio.median:.2f}", quartiles(ratio), "≤ 1.05" if name == _NAMES else "", each])
    note = "CPU time in a new process, with compiled bytecode; ratios to the first row."
    return [Table("Imports", note, ["work", "CPU ratio", "quartiles", "aim", "CPU"], rows)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
