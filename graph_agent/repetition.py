"""What is done about calls that repeat: a warning, then the tools are withheld, then the input is ended.

Each pattern climbs by itself, a step for each wave that repeats it again, and all begin anew with the next input.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from langchain_core.messages import HumanMessage

from graph_agent.events import StoredEvent, event
from graph_agent.intake import NOT_SHOWN
from graph_agent.loops import REPEATS, Loop, find_loop, unchanging
from graph_agent.recent import Known, named_call, recent_calls
from graph_agent.step import Step
from graph_agent.types import Call

_WARN, _WITHHOLD = 1, 2


def stop_repetition(step: Step) -> bool:
    """Look for a loop at the end of the input's calls, and do what is due; True when that ended the input."""
    settings, waves = step.settings, step.loop["waves"]
    # Equal calls of one wave count once, so that nothing has come round often enough yet.
    if waves < 2 or (waves < REPEATS and settings.loop_window >= REPEATS * settings.loop_max_period):
        return False
    told = step.state["events"]
    recent = recent_calls(told, step.parts.toolbox.marks, step.settings.loop_window, step.run.fingerprints)
    found = find_loop(recent.fingerprints, window=step.settings.loop_window, max_period=step.settings.loop_max_period)
    if found is not None and set(_newest_wave(told, step.run.fingerprints)) & set(found.pattern):
        return _climb(step, found)
    same = unchanging(recent.results, window=step.settings.loop_window, told=step.loop.get("unchanging", ()))
    if same is not None:
        step.loop["unchanging"] = [*step.loop.get("unchanging", []), same]
        warning = f"{same} gave the same result each time, whatever its arguments were."
        step.events.append(event("warning", step.loop["step"], message=warning))
        _tell(step, warning)
    return False


def _climb(step: Step, loop: Loop) -> bool:
    names = [entry.rpartition(":")[0] for entry in loop.pattern]
    step.events.append(event("loop_detected", step.loop["step"], pattern=names, count=loop.count))
    level = step.loop.get("loops", {}).get(loop.key, 0) + 1
    step.loop["loops"] = {**step.loop.get("loops", {}), loop.key: level}
    if level > _WITHHOLD:
        step.stop("loop", None)
        return True
    withheld = sorted(set(names)) if level == _WITHHOLD else []
    if withheld:
        step.loop["withheld"] = sorted({*step.loop.get("withheld", []), *withheld})
    _tell(
        step,
        step.parts.prompts.render("loop_warning", pattern=", ".join(names), count=loop.count, withheld=withheld),
    )
    return False


def _tell(step: Step, text: str) -> None:
    """Say something to the model that no chat window shows."""
    message = HumanMessage(text, id=f"{NOT_SHOWN}{uuid.uuid4()}")
    step.say(message)
    step.history = [*step.history, message]


def _newest_wave(events: list[StoredEvent], known: Known) -> Iterable[str]:
    """Fingerprints of the newest plan's calls: a wave of others does not make an older pattern go on."""
    for entry in reversed(events):
        if entry["type"] == "plan":
            return
        call = named_call(entry, known)
        if call is not None:
            yield call[1]


def refused(call: Call, withheld: Iterable[str]) -> Call:
    """A call of a tool that is withheld, with what is wrong with it; any other call as it is."""
    if call["name"] not in withheld:
        return call
    why = f"{call['name']} is withheld until the user's next message, because its calls went round in a circle."
    return {**call, "fault": f"{why} Use something else, or answer from what you know."}
