"""The response to repeated calls: warn the model, then withhold the tools, then end the input.

Tools are withheld and the input is ended only while the results repeat too. Each pattern has its own level, which rises
by one per wave that repeats it; every input starts without levels.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from langchain_core.messages import HumanMessage

from graph_agent.events.types import event
from graph_agent.planning.loop_detection import REPEATS, Loop, find_loop, recent_calls, repetitions, unchanging
from graph_agent.planning.update import PlanUpdate
from graph_agent.types import HIDDEN_ID_PREFIX, Call

_NOTED, _WARN, _WITHHOLD = range(3)
"""Levels of a pattern: results differ (reported once); results repeat, first time; results repeat, second time."""


def stop_repetition(update: PlanUpdate) -> bool:
    """Find a loop at the end of the input's calls and respond to it; True if that ended the input."""
    settings, waves = update.settings, update.loop["waves"]
    if not settings.loop_detection:
        update.loop.pop("withheld", None)
        return False
    # Equal calls of one wave count once, so no pattern can have repeated often enough yet.
    if waves < 2 or (waves < REPEATS and settings.loop_window >= REPEATS * settings.loop_max_period):
        return False
    window = settings.loop_window
    recent = recent_calls(update.state["events"], update.parts.toolbox.marks, window, update.run.fingerprints)
    loop = find_loop(recent.fingerprints, window=window, max_period=settings.loop_max_period)
    # A wave of other calls does not continue an older pattern.
    if loop is not None and not recent.newest_wave.isdisjoint(loop.pattern):
        period = len(loop.pattern)
        same = repetitions(recent.outcomes, period, window=window) if all(recent.outcomes[-period:]) else 0
        return _respond(update, loop, same)
    reported = update.loop.get("unchanging", [])
    tool = unchanging(recent.results, window=window, reported=reported)
    if tool is not None:
        update.loop["unchanging"] = [*reported, tool]
        _record(update, [tool], REPEATS, "results")
    return False


def _respond(update: PlanUpdate, loop: Loop, same: int) -> bool:
    """Raise the level of a pattern and respond; True if that ended the input.

    Args:
        update: The pass through `plan`.
        loop: The pattern.
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
    _record(update, names, loop.count, "calls and results")
    if level > _WITHHOLD:
        update.stop("loop", None)
        return True
    withheld = sorted(set(names)) if level == _WITHHOLD else []
    if withheld:
        update.loop["withheld"] = sorted({*update.loop.get("withheld", []), *withheld})
    _notify(update, names, same, same=True, withheld=withheld)
    return False


def _record(update: PlanUpdate, names: list[str], count: int, repeated: str) -> None:
    update.events.append(event("loop_detected", update.loop["step"], pattern=names, count=count, repeated=repeated))


def _notify(
    update: PlanUpdate, names: list[str], count: int, *, same: bool = False, withheld: Iterable[str] = ()
) -> None:
    """Send the model a notice that no chat window shows."""
    text = update.parts.prompts.render(
        "loop_warning", pattern=", ".join(names), count=count, same=same, withheld=list(withheld)
    )
    message = HumanMessage(text, id=f"{HIDDEN_ID_PREFIX}{uuid.uuid4()}")
    update.add_message(message)
    update.history = [*update.history, message]


def mark_withheld(call: Call, withheld: Iterable[str]) -> Call:
    """Add a fault to a call of a withheld tool; return any other call unchanged."""
    if call["name"] not in withheld:
        return call
    why = f"{call['name']} is withheld until the user's next message, because its calls and their results repeated."
    return {**call, "fault": f"{why} Use something else, or answer from what you know."}
