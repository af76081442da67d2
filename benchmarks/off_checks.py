"""Counts the bytecode instructions that a turn runs for features that are off: `python -m benchmarks.off_checks`.

The features are those that begin work early (`dispatch`, `predict`, `candidates`) and `origins`. Their code lies in
folders of its own; what is left in a turn without them are expressions that read a setting, or find that there is
nothing. An instruction counts if the source of its own expression names one of the features. The program fails above
the ceiling, and if the whole turn runs more instructions than it did before the features were added.
"""

from __future__ import annotations

import asyncio
import json
import linecache
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from benchmarks.files_of_a_turn import NODES, PACKAGE, agent, look_up
from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent

FEATURES = re.compile(
    r"\b(dispatch|predict|candidates|origins|tainted|on_tainted|speculation|listener|chunk_listener|early|overlap"
    r"|calls_first|keep_templates)\b"
)
"""Matches an expression that is there for one of the features."""
FOLDERS = ("core/execution/overlap", "core/planning/origins")
"""Folders of which a turn without the features runs nothing."""


class Instructions(NamedTuple):
    """The bytecode instructions of one turn."""

    all: int
    """Those of the package."""
    checks: int
    """Those of expressions that name a feature."""
    lines: dict[str, int]
    """`path:line` of such an expression → its instructions."""
    in_folders: int
    """Those of the features' own folders."""


CEILINGS = {"native": 72, "wave": 90}
"""Instructions of expressions that name a feature, at most, by mode of tool calling."""
BEFORE = {"native": 25_845, "wave": 31_365}
"""All instructions of the same turn in Python 3.11 before any of the features was added; a turn in which they are off
may not run more."""


class _Tracer:
    """Counts the instructions of the package; `trace` is the trace function of all threads."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[CodeType, int]] = Counter()
        """Code and place of an instruction → how often it ran."""
        self._own: dict[str, bool] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow the instructions of a frame of the package."""
        name = frame.f_code.co_filename
        if name not in self._own:
            path = Path(name).resolve()
            self._own[name] = path.is_relative_to(PACKAGE) or path.is_relative_to(NODES)
        if not self._own[name]:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.counts[frame.f_code, frame.f_lasti] += 1
        return self._step


async def counted(turn: Callable[[], Awaitable[object]]) -> Instructions:
    """Count the instructions of the second of two equal turns."""
    await turn()
    tracer, before = _Tracer(), sys.gettrace()
    threading.settrace(tracer.trace)
    sys.settrace(tracer.trace)
    try:
        await turn()
    finally:
        sys.settrace(before)
        threading.settrace(before)
    return _by_feature(tracer.counts)


def _by_feature(counts: Counter[tuple[CodeType, int]]) -> Instructions:
    """Sum the instructions by what they are for."""
    folders = tuple(str(PACKAGE / folder) for folder in FOLDERS)
    checks: Counter[str] = Counter()
    inside = 0
    for (code, place), count in counts.items():
        name, place_in_file = code.co_filename, [*code.co_positions()][place // 2]
        if name.startswith(folders):
            inside += count
        elif FEATURES.search(_source(name, *place_in_file)):
            checks[f"{os.path.relpath(name, NODES.parent)}:{place_in_file[0]}"] += count
    return Instructions(counts.total(), checks.total(), dict(sorted(checks.items())), inside)


def _source(name: str, line: int | None, last: int | None, column: int | None, end: int | None) -> str:
    """Return the source of an expression; empty for a statement of several lines, and for code without a place."""
    if line is None or line != last:
        return ""
    return linecache.getline(name, line).encode()[column:end].decode()


async def of_mode(mode: str) -> Instructions:
    """Count a turn with one call and an answer, in the mode `native` or `wave`."""
    if mode == "native":
        graph = agent()
    else:
        calls = [{"id": "c", "tool": "look_up", "args": {"text": "a"}}]
        plans = [{"status": "continue", "tools": calls}, {"status": "done", "tools": [], "answer": "Found a."}]
        model = ScriptedChatModel([json.dumps(plan) for plan in plans], cycle=True)
        graph = create_graph_agent(model, tools=[look_up], config=LoopConfig(tool_calling="wave"))
    return await counted(lambda: graph.ainvoke({"messages": [("user", "find a")]}))


def main() -> None:
    """Print the figures of each mode; exit with an error above a ceiling."""
    above = False
    for mode, most in CEILINGS.items():
        found = asyncio.run(of_mode(mode))
        if "--list" in sys.argv:
            for place, count in found.lines.items():
                print(f"{count:5} {place}")
        share = found.checks / found.all
        print(f"{mode}: {found.checks} of {found.all} instructions ({share:.2%}) are for what is off, at most {most}")
        print(f"{mode}: before the features, the same turn had {BEFORE[mode]} instructions")
        above = above or found.checks > most or found.in_folders > 0 or found.all > BEFORE[mode]
    if above:
        sys.exit("A feature that is off costs more than before.")


if __name__ == "__main__":
    main()
