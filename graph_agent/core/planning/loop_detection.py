"""Detects repeated calls, at a cost that does not grow with the history, and responds to them.

A fingerprint is a text that is equal for calls of equal name and arguments.

Parts of loop detection in other files:

- `nodes/plan.py`: the rule `stop_at_repetition`; `mark_withheld`, for calls of withheld tools
- `core/planning/next_request.py`: offers a model no tool that is `withheld`
- `core/state/schema.py`: the keys `loops`, `withheld` and `unchanging` of the loop
- `base/history/events.py`: `LoopDetectedEvent`
- `core/extensions/loop_hooks.py`: counts the calls of replies that a hook replaced
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from langchain_core.utils.utils import LC_AUTO_PREFIX

from graph_agent.base._internal.failure_log import IN_HISTORY, get_logger
from graph_agent.base.calls import fingerprint
from graph_agent.base.history.call_events import call_of
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.types import Call
from graph_agent.core.planning.update import PlanUpdate

logger = get_logger("graph_agent.planning.loop_detection")
REPEATS = 3
"""Consecutive occurrences that make a pattern a loop. Two are not enough, since the second may be a retry."""
_MAX_POLL_WINDOWS = 8
"""Calls to read at most, as a multiple of the window, so that an input of polling calls only is not read whole."""
_NOTED, _WARN, _WITHHOLD = range(3)
"""Levels of a pattern: results differ (reported once); results repeat, first time; results repeat, second time."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A pattern of calls that repeats at the end of an input's calls."""

    pattern: tuple[str, ...]
    """One period of the pattern, as fingerprints, oldest first; its last entry is the newest call."""
    count: int
    """Consecutive occurrences of the whole pattern at the end of the window; at least 2."""
    key: str
    """12 hexadecimal digits that identify the pattern, wherever the period begins: a-b-a-b and b-a-b-a have the same
    key."""


def find_loop(fingerprints: Sequence[str], *, window: int, max_period: int) -> Loop | None:
    """Return the shortest pattern of calls that repeats at the end of a history; None if there is none.

    A pattern is a loop if it occurs `REPEATS` times in a row. If the window is too short for that, the pattern must
    fill the window and occur at least twice. The cost is at most `window * max_period` comparisons.

    Args:
        fingerprints: The calls, oldest first; equal strings are equal calls. Only the last `window` are read.
        window: Number of last calls to search; at least 2.
        max_period: The maximum length of a pattern, in calls.
    """
    recent = fingerprints[-window:]
    if not recent or recent.count(recent[-1]) == 1:
        return None
    for period in range(1, max_period + 1):
        if (length := _repetition(recent, period, window)) is not None:
            pattern = tuple(recent[-period:])
            return Loop(pattern, length // period, _key(pattern))
    return None


def repetitions(values: Sequence[Any], period: int, *, window: int) -> int:
    """Return how many times the last `period` values occur in a row at the end.

    0 if too rarely for a loop (see `find_loop`).

    Args:
        values: One value for each call, such as its result, oldest first; compared with `==`.
        period: Length of the pattern, in values.
        window: Number of last values to search.
    """
    return (_repetition(values[-window:], period, window) or 0) // period


def unchanging(results: Sequence[tuple[str, str, Any]], *, window: int, reported: Collection[str] = ()) -> str | None:
    """Return a tool whose last `REPEATS` calls in the window all had different arguments and equal results; None if
    there is none.

    Args:
        results: `(tool, fingerprint of the arguments, result)` of each call, oldest first. Results are compared with
            `==`. Calls of other tools may stand between.
        window: Number of last entries to search.
        reported: Names of tools to skip.

    Returns:
        The name of the tool; the most recently called one if there are several.
    """
    calls: dict[str, list[tuple[str, Any]]] = {}
    for tool, arguments, result in reversed(results[-window:]):
        calls.setdefault(tool, []).append((arguments, result))
    for tool, newest_first in calls.items():
        last = newest_first[:REPEATS]
        differ = len({arguments for arguments, _ in last}) == REPEATS
        if tool not in reported and differ and all(result == last[0][1] for _, result in last):
            return tool
    return None


def _repetition(recent: Sequence[Any], period: int, window: int) -> int | None:
    """Return how many of the last values repeat with a period, an incomplete period included; None if there are too few
    for a loop.

    Enough are `REPEATS` periods; if the window cannot hold these, a full window, and two periods at least.

    Args:
        recent: The last values of the window.
        period: Length of the pattern, in values.
        window: Size of the window.
    """
    start = len(recent) - period
    while start > 0 and recent[start - 1] == recent[start - 1 + period]:
        start -= 1
    length = len(recent) - max(start, 0)
    enough = REPEATS * period if REPEATS * period <= window else max(window, 2 * period)
    return length if length >= enough else None


def _key(pattern: tuple[str, ...]) -> str:
    """Return 12 hexadecimal digits that identify a pattern and are the same for each rotation of it."""
    first = min(pattern[i:] + pattern[:i] for i in range(len(pattern)))
    return hashlib.sha256(json.dumps(first).encode()).hexdigest()[:12]


class RecentCalls(NamedTuple):
    """The newest calls of an input, oldest first, without those of tools that are marked `poll`."""

    fingerprints: list[str]
    """One fingerprint for each call, the argument of `find_loop`. Equal calls of one wave are one entry."""
    outcomes: list[tuple[Any, ...]]
    """For each entry of `fingerprints`, `(status, content)` of the results of all equal calls of its wave."""
    results: list[tuple[str, str, Any]]
    """`(name, fingerprint, (status, content))` of the last call of each tool in each wave, the argument of
    `unchanging`."""
    newest_wave: frozenset[str]
    """Fingerprints of the calls of the newest plan."""


class _Entry(NamedTuple):
    """One call of a wave, with all equal calls of that wave."""

    fingerprint: str
    outcomes: tuple[Any, ...]
    """`(status, content)` of the result of each of these calls."""
    result: tuple[str, str, Any] | None
    """`(name, fingerprint, (status, content))` if the call is the last one of its tool in the wave and has a result."""


class _Part(NamedTuple):
    """The calls in a part of a history, which begins somewhere in it and goes on to its end."""

    entries: list[_Entry]
    """The calls, oldest first."""
    newest_wave: frozenset[str] | None
    """Fingerprints of the calls of the newest plan; None if the part has no plan."""
    unplanned: frozenset[str]
    """Fingerprints of the calls before the part's first plan."""
    is_whole: bool
    """Whether the part has the beginning of the input, or enough calls."""
    is_open: bool
    """Whether the part has calls without their plan, or results without their call."""


class KnownCalls:
    """The calls that a run has read so far, so that its next pass reads the events that are new."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        """The newest calls, oldest first; at most `window`."""
        self.newest_wave: frozenset[str] = frozenset()
        self.window = 0
        """Window of the last read; 0 before the first one."""
        self.read = 0
        """Number of the session's events that were read; a run only appends events."""


def recent_calls(
    events: Sequence[StoredEvent],
    marks: Callable[[str], Mapping[str, Any]],
    window: int,
    known: KnownCalls | None = None,
) -> RecentCalls:
    """Read the last calls of the newest input from the events, delegations included.

    Repetition is counted from wave to wave: equal calls of one wave count once, with all their results. Calls of a tool
    marked `poll` are skipped, because it is meant to be repeated.

    Args:
        events: The stored history, oldest first; read from its end, only as far as needed.
        marks: Returns the metadata of a tool by name; empty for an unknown tool.
        window: Maximum number of calls to return.
        known: The calls that an earlier read of this history has found, so that only newer events are read; updated in
            place, and not used if its window differs. None to read the whole window.
    """
    known = KnownCalls() if known is None else known
    begin = known.read if known.window == window else 0
    part = _read(events, begin, marks, window)
    # A call and its results may lie on both sides of the beginning, e.g. those of a task in the background.
    if begin and part.is_open and not part.is_whole:
        begin, part = 0, _read(events, 0, marks, window)
    entries, newest_wave = part.entries, part.newest_wave
    if begin and not part.is_whole:
        entries = [*known.entries, *entries][-window:]
        newest_wave = known.newest_wave if newest_wave is None else newest_wave
    newest_wave = part.unplanned if newest_wave is None else newest_wave
    known.entries, known.newest_wave, known.window, known.read = entries, newest_wave, window, len(events)
    fingerprints, outcomes, results = map(list, zip(*entries, strict=True)) if entries else ([], [], [])
    return RecentCalls(fingerprints, outcomes, [*filter(None, results)], newest_wave)


def _read(events: Sequence[StoredEvent], begin: int, marks: Callable[[str], Mapping[str, Any]], window: int) -> _Part:
    """Read the calls of the newest input in the events from the index `begin` on.

    Reading goes backwards, and ends at the user message that began the input, when the window is full, or after
    `_MAX_POLL_WINDOWS` times as many calls. The other parameters are those of `recent_calls`.
    """
    newest_first: list[_Entry] = []
    answers: dict[str, tuple[str, Any]] = {}
    newest_wave: frozenset[str] | None = None
    indexes: dict[str, int] = {}
    tools: set[str] = set()
    polls: dict[str, bool] = {}
    read, is_whole = 0, not begin
    for entry in islice(reversed(events), len(events) - begin):
        kind = entry["type"]
        # Calls of an earlier input are no repetition: the user has asked again.
        if kind == "user_message" or len(newest_first) == window or read == _MAX_POLL_WINDOWS * window:
            is_whole = True
            break
        if kind == "plan":
            newest_wave = frozenset(indexes) if newest_wave is None else newest_wave
            indexes, tools = {}, set()
        elif kind in ("tool_result", "delegation_response"):
            content = entry["content"]
            answers[entry["id"]] = entry["status"], content if type(content) is str else _comparable(content)
        elif (call := call_of(entry)) is not None:
            read += 1
            name, key = call["name"], fingerprint(call)
            result = answers.pop(entry["id"], None)
            if name not in polls:
                polls[name] = bool(marks(name).get("poll"))
            if polls[name]:
                continue
            given = () if result is None else (result,)
            if key in indexes:
                same = newest_first[indexes[key]]
                newest_first[indexes[key]] = same._replace(outcomes=(*same.outcomes, *given))
            else:
                indexes[key] = len(newest_first)
                is_last = result is not None and name not in tools
                newest_first.append(_Entry(key, given, (name, key, result) if is_last else None))
            tools.add(name)
    return _Part(newest_first[::-1], newest_wave, frozenset(indexes), is_whole, bool(indexes or answers))


def _comparable(content: Any) -> Any:
    """Return a result's content without the random ids that LangChain adds to content blocks.

    Other content unchanged.
    """
    if not isinstance(content, list):
        return content
    return [
        {key: value for key, value in block.items() if key != "id" or not str(value).startswith(LC_AUTO_PREFIX)}
        if isinstance(block, dict)
        else block
        for block in content
    ]


def stop_repetition(update: PlanUpdate) -> bool:
    """Find a loop at the end of the input's calls, and respond to it (see `_respond`). Returns whether planning was
    ended.

    A loop counts only if the newest wave continues it. If there is none, a tool that returned equal results for
    different arguments is recorded in an event, once per input. Without the setting `loop_detection`, tools that were
    withheld (no longer offered) after a loop are offered again.
    """
    settings, waves = update.settings, update.loop["waves"]
    if not settings.loop_detection:
        update.loop.pop("withheld", None)
        return False
    # Equal calls of one wave count once, so no pattern can have repeated often enough yet.
    if waves < REPEATS and settings.loop_window >= REPEATS * settings.loop_max_period:
        return False
    window = settings.loop_window
    known = update.run.shared("recent calls", KnownCalls)
    recent = recent_calls(update.state["events"], update.deps.toolbox.marks, window, known)
    loop = find_loop(recent.fingerprints, window=window, max_period=settings.loop_max_period)
    # A wave of other calls does not continue an older pattern.
    if loop is not None and not recent.newest_wave.isdisjoint(loop.pattern):
        period = len(loop.pattern)
        # Other calls may have equal results, so a call is compared with its results.
        answered = list(zip(recent.fingerprints, recent.outcomes, strict=True))
        same = repetitions(answered, period, window=window) if all(recent.outcomes[-period:]) else 0
        return _respond(update, loop, same)
    reported = update.loop.get("unchanging", [])
    tool = unchanging(recent.results, window=window, reported=reported)
    if tool is not None:
        update.loop["unchanging"] = [*reported, tool]
        _record(update, [tool], REPEATS, "results")
    return False


def _respond(update: PlanUpdate, loop: Loop, same: int) -> bool:
    """Raise the level of a found loop and respond to it. Returns whether planning was ended.

    - Results that do not repeat: at the first time, an event and a notice for the model; later nothing.
    - Results that repeat: at the first time, an event and a notice; at the second time, the tools of the pattern are
      withheld, too; at the third, planning ends with the stop reason `loop`, and a log record. Withheld tools have no
      results to compare, so that after the second time any repetition counts.

    Args:
        update: The pass through `plan`, which is changed.
        loop: The loop.
        same: Number of consecutive periods with equal results; 0 if the results do not repeat.
    """
    names = [entry.rpartition(":")[0] for entry in loop.pattern]
    levels = update.loop.get("loops", {})
    level = levels.get(loop.key)
    # Withheld tools have no results to compare.
    if not same and level != _WITHHOLD:
        update.loop["loops"] = {**levels, loop.key: _NOTED}
        if level is None:
            _record(update, names, loop.count, "calls")
            _notify(update, names, loop.count)
        return False
    level = (level or _NOTED) + 1
    update.loop["loops"] = {**levels, loop.key: level}
    if level > _WITHHOLD:
        hint = update.deps.prompts.render("limit_hint", reason="loop", limit=", ".join(sorted(set(names))))
        logger.warning("The input ended in a loop of equal calls. %s", hint, extra=IN_HISTORY)
        _record(update, names, loop.count, "calls", **({"hint": hint} if hint else {}))
        update.stop("loop", None)
        return True
    _record(update, names, same, "calls and results")
    withheld = sorted(set(names)) if level == _WITHHOLD else []
    if withheld:
        update.loop["withheld"] = sorted({*update.loop.get("withheld", []), *withheld})
    _notify(update, names, same, same=True, withheld=withheld)
    return False


def _record(update: PlanUpdate, names: list[str], count: int, repeated: str, **hint: str) -> None:
    """Add the `loop_detected` event of a loop.

    Args:
        update: The pass through `plan`.
        names: Names of the tools of one period.
        count: Number of repetitions.
        repeated: What repeats: `calls`, `results`, or `calls and results`.
        hint: The field `hint`, advice for the developer, if there is any.
    """
    fields = {"pattern": names, "count": count, "repeated": repeated, **hint}
    update.events.append(event("loop_detected", update.loop["step"], **fields))


def _notify(
    update: PlanUpdate, names: list[str], count: int, *, same: bool = False, withheld: Iterable[str] = ()
) -> None:
    """Add a hidden notice about a loop for the model.

    Args:
        update: The pass through `plan`.
        names: Names of the tools of one period.
        count: Number of repetitions.
        same: Whether the results repeat, too.
        withheld: Names of the tools that are withheld from now on.
    """
    fields = {"pattern": ", ".join(names), "count": count, "same": same, "withheld": list(withheld)}
    update.add_notice(update.deps.prompts.render("loop_warning", **fields))


def mark_withheld(call: Call, withheld: Iterable[str]) -> Call:
    """Return a copy of a call with a `fault` if its tool is withheld (no longer offered after a loop), so that it does
    not run and gets a `denied` result. Any other call is returned unchanged.
    """
    if call["name"] not in withheld:
        return call
    why = f"{call['name']} is withheld until the user's next message, because its calls and their results repeated."
    return {**call, "fault": f"{why} Use something else, or answer from what you know.", "denied_by": "loop_detection"}
