"""Cost of the loop's guards: `python -m benchmarks.guards`.

Loop detection in a history of 10,000 calls and truncation of 100 MB outputs, each compared with a turn of the loop and
with the same work on small input, and truncation also with two plain slices.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import harness
from benchmarks.harness import Scale, Table, Trial, Work, plain
from benchmarks.work import graph_agent_session, sessions_trial
from graph_agent import LoopConfig
from graph_agent.base.history.call_events import call_event, result_event
from graph_agent.base.types import Call
from graph_agent.core.extensions.truncation import truncate_output
from graph_agent.core.planning.loop_detection import find_loop, recent_calls, unchanging
from graph_agent.state.events import StoredEvent, event

_TURNS = 50
_SETTINGS = LoopConfig()
_CALL: Call = {"id": "c", "name": "dump", "arguments": {}}
_MB = 1_000_000
_LONG_LINE = "a long line "
_LINE = "a line\n"
_ACCENTED = "e\u0301"
_MARKS: dict[str, Any] = {"effect": "read"}


def history(calls: int) -> list[StoredEvent]:
    """The events of one input of so many calls of one tool, no two alike."""
    events = [event("user_message", 0, content="go")]
    for step in range(1, calls + 1):
        call: Call = {"id": f"c{step}", "name": "lookup", "arguments": {"key": f"k{step}", "page": step}}
        events += [event("plan", step, calls=[{"id": call["id"], "name": call["name"]}]), call_event(call, step)]
        events.append(result_event(call["id"], call["name"], "success", f"the value of k{step}", step))
    return events


def search(events: list[StoredEvent]) -> None:
    """The work of loop detection in one turn."""
    window = _SETTINGS.loop_window
    recent = recent_calls(events, lambda _: _MARKS, window)
    find_loop(recent.fingerprints, window=window, max_period=_SETTINGS.loop_max_period)
    unchanging(recent.results, window=window)


def cut(text: str) -> None:
    """The work of truncating one output."""
    truncate_output(text, _SETTINGS, {}, _CALL)


def slices(text: str) -> None:
    """The lower bound: two plain slices."""
    half = _SETTINGS.max_output_chars // 2
    "\n".join([text[:half], text[-half:]])


def cases(scale: Scale) -> dict[str, Callable[[], None]]:
    """The measured functions by name; the small ones are the reference of the large ones."""
    mb = 1_000 if scale.tiny else _MB
    found: dict[str, Callable[[], None]] = {}
    for calls in (10, 10_000):
        events = history(scale.size(calls))
        found[f"loops, {calls:,} calls"] = lambda events=events: search(events)  # type: ignore[misc] # bound per loop
    for name, unit in (("one line", _LONG_LINE), ("short lines", _LINE), ("accents", _ACCENTED)):
        for size in (mb // 10, 100 * mb):
            text = unit * (size // len(unit))
            label = f"cut, {name}, {size / mb:g} MB"
            found[label] = lambda text=text: cut(text)  # type: ignore[misc] # bound per loop
    text = _LONG_LINE * (100 * mb // len(_LONG_LINE))
    found["two slices of 100 MB"] = lambda: slices(text)
    return found


async def tables(scale: Scale) -> list[Table]:
    """Measure each function, relative to a turn, to small input and to two slices."""
    repeats, turns = scale.size(200), scale.size(_TURNS)
    work = cases(scale)
    trials: dict[str, Trial] = {name: plain(_repeat(function, repeats)) for name, function in work.items()}
    trials["turn"] = sessions_trial(functools.partial(graph_agent_session, turns))
    costs = await harness.interleaved(trials, scale)
    names = list(work)
    rows: list[list[str]] = []
    for at, name in enumerate(names):
        of_turn = harness.cpu_ratio(costs, name, "turn", turns / repeats)
        to_small = harness.cpu_ratio(costs, name, names[at - at % 2]) if name != names[-1] else None
        to_slices = harness.cpu_ratio(costs, name, names[-1]) if name.startswith("cut") else None
        each = statistics.median(cost.cpu for cost in costs[name]) / repeats
        ratios = [f"{ratio.median:.2f}" if ratio else "" for ratio in (to_small, to_slices)]
        rows.append([name, f"{1e6 * each:.1f} µs", f"{of_turn.median:.3f}", *ratios])
    columns = ["work", "CPU", "to a turn", "to small input", "to two slices"]
    return [Table("Loop detection and truncation", "Pure functions; ratios of CPU times.", columns, rows)]


def _repeat(function: Callable[[], None], repeats: int) -> Callable[[], Work]:
    async def work() -> None:
        for _ in range(repeats):
            function()

    return lambda: work


if __name__ == "__main__":
    harness.main(tables, __doc__)
