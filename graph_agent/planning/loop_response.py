"""The response to calls that repeat: a warning, then the tools are withheld, then the input is ended.

A pattern of calls is withheld and ended only while its results repeat too. Each pattern is counted by itself, one level
for each wave that repeats it again, and every input starts anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from langchain_core.messages import HumanMessage

from graph_agent.events.types import event
from graph_agent.planning.loop_detection import REPEATS, Loop, find_loop, recent_calls, repetitions, unchanging
from graph_agent.planning.update import Step
from graph_agent.types import NOT_SHOWN, Call

_NOTED, _WARN, _WITHHOLD = range(3)
"""Levels of a pattern: its results differ, so that it is reported once; its results repeat, once and twice."""


def stop_repetition(step: Step) -> bool:
    """Look for a loop at the end of the input's calls and respond to it; True when that ended the input."""
    settings, waves = step.settings, step.loop["waves"]
    if not settings.loop_detection:
        step.loop.pop("withheld", None)
        return False
    # Equal calls of one wave count once, so that nothing can have repeated often enough yet.
    if waves < 2 or (waves < REPEATS and settings.loop_window >= REPEATS * settings.loop_max_period):
        return False
    window = settings.loop_window
    recent = recent_calls(step.state["events"], step.parts.toolbox.marks, window, step.run.fingerprints)
    loop = find_loop(recent.fingerprints, window=window, max_period=settings.loop_max_period)
    # A wave of other calls does not make an older pattern go on.
    if loop is not None and not recent.newest_wave.isdisjoint(loop.pattern):
        period = len(loop.pattern)
        same = repetitions(recent.outcomes, period, window=window) if all(recent.outcomes[-period:]) else 0
        return _respond(step, loop, same)
    reported = step.loop.get("unchanging", [])
    tool = unchanging(recent.results, window=window, told=reported)
    if tool is not None:
        step.loop["unchanging"] = [*reported, tool]
        _record(step, [tool], REPEATS, "results")
    return False


def _respond(step: Step, loop: Loop, same: int) -> bool:
    """Take a pattern to its next level; True when that ended the input.

    Args:
        step: The pass through `plan`.
        loop: The pattern.
        same: How many times in a row its results were the same; 0 where they do not repeat.
    """
    names = [entry.rpartition(":")[0] for entry in loop.pattern]
    levels = step.loop.get("loops", {})
    level = levels.get(loop.key)
    # Tools that are withheld give nothing to compare.
    if not same and level != _WITHHOLD:
        step.loop["loops"] = {**levels, loop.key: _NOTED}
        if level is None:
            _record(step, names, loop.count, "calls")
            _notify(step, names, loop.count)
        return False
    level = (level or _NOTED) + 1
    step.loop["loops"] = {**levels, loop.key: level}
    _record(step, names, loop.count, "calls and results")
    if level > _WITHHOLD:
        step.stop("loop", None)
        return True
    withheld = sorted(set(names)) if level == _WITHHOLD else []
    if withheld:
        step.loop["withheld"] = sorted({*step.loop.get("withheld", []), *withheld})
    _notify(step, names, same, same=True, withheld=withheld)
    return False


def _record(step: Step, names: list[str], count: int, repeated: str) -> None:
    step.events.append(event("loop_detected", step.loop["step"], pattern=names, count=count, repeated=repeated))


def _notify(step: Step, names: list[str], count: int, *, same: bool = False, withheld: Iterable[str] = ()) -> None:
    """Send the model a notice that no chat window shows."""
    text = step.parts.prompts.render(
        "loop_warning", pattern=", ".join(names), count=count, same=same, withheld=list(withheld)
    )
    message = HumanMessage(text, id=f"{NOT_SHOWN}{uuid.uuid4()}")
    step.say(message)
    step.history = [*step.history, message]


def refused(call: Call, withheld: Iterable[str]) -> Call:
    """A call of a withheld tool, marked with its fault; any other call as it is."""
    if call["name"] not in withheld:
        return call
    why = f"{call['name']} is withheld until the user's next message, because its calls and their results repeated."
    return {**call, "fault": f"{why} Use something else, or answer from what you know."}
