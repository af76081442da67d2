"""Cost of the loop's guards: `python -m benchmarks.guards`.

Loop detection in a history of 10,000 calls and truncation of 100 MB outputs, each compared with a turn of the loop and
with the same work on small input, and truncation also with two plain slices. Each round measures all of them in turn;
the ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.loop import measure
from graph_agent import LoopConfig
from graph_agent.events.calls import call_event, result_event
from graph_agent.events.types import StoredEvent, event
from graph_agent.planning.loop_detection import find_loop, recent_calls, unchanging
from graph_agent.tools.truncation import truncate_output
from graph_agent.types import Call

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


def cases() -> dict[str, Callable[[], None]]:
    """The measured functions by name; the small ones are the reference of the large ones."""
    found: dict[str, Callable[[], None]] = {}
    for calls in (10, 10_000):
        events = history(calls)
        found[f"loops, {calls:,} calls"] = lambda events=events: search(events)  # type: ignore[misc] # bound per loop
    for name, unit in (("one line", _LONG_LINE), ("short lines", _LINE), ("accents", _ACCENTED)):
        for size in (_MB // 10, 100 * _MB):
            text = unit * (size // len(unit))
            label = f"cut, {name}, {size / _MB:g} MB"
            found[label] = lambda text=text: cut(text)  # type: ignore[misc] # bound per loop
    text = _LONG_LINE * (100 * _MB // len(_LONG_LINE))
    found["two slices of 100 MB"] = lambda: slices(text)
    return found


def seconds_of(work: Callable[[], None], repeats: int) -> float:
    """Seconds of one call, from several in a row."""
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begun) / repeats


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The cost of finding loops and of cutting outputs.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    timed = cases()
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    turn: list[float] = []
    asyncio.run(measure("graph-agent", 2, None))
    for _ in range(options.rounds):
        taken, _messages = asyncio.run(measure("graph-agent", _TURNS, None))
        turn.append(taken / _TURNS)
        for name, work in timed.items():
            seconds[name].append(seconds_of(work, options.repeats))
    names = list(timed)
    print(f"{'':26} {'µs':>8} {'of a turn':>10} {'to small':>9} {'to slices':>9}")
    for name in names:
        small = names[names.index(name) - names.index(name) % 2] if name != names[-1] else name
        ratios = [ratio(seconds[name], base) for base in (turn, seconds[small], seconds[names[-1]])]
        compared = (
            f"{ratios[1]:9.2f} {ratios[2]:9.2f}" if not name.startswith("loops") else f"{ratios[1]:9.2f} {'-':>9}"
        )
        print(f"{name:26} {1e6 * statistics.median(seconds[name]):8.1f} {ratios[0]:10.3f} {compared}")


def ratio(ones: list[float], others: list[float]) -> float:
    """The median of the ratios, round by round."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


if __name__ == "__main__":
    main()
