"""Reading one JSON value: strictly if possible, else tolerantly; and json_repair as the last resort."""

from __future__ import annotations

import json
from typing import Any

from graph_agent.calls.call import MAX_DEPTH
from graph_agent.calls.tolerant import ParsedValue, integer, read_tolerant
from graph_agent.calls.work import WorkBudget

# NaN, Infinity and what is beyond a float's range are read as Python has them: whoever runs the call can refuse them.
_DECODER = json.JSONDecoder(strict=False, parse_int=integer)
_MOST_GUESSING = 60_000  # openers times characters; what the guess costs grows with both
_STEPS, _CHARACTERS_A_STEP, _STEPS_OF_AN_ERROR = 8, 16, 16


def read_json(text: str, work: WorkBudget) -> ParsedValue | None:
    """Read the object or list that is ``text``, damaged or cut short; None when that takes a guess, or more work.

    Raises nothing: nesting beyond ``MAX_DEPTH`` and a spent budget give None. A number that JSON cannot hold is a float
    that is not finite.
    """
    if not work.take(len(text) // _CHARACTERS_A_STEP + _STEPS):
        return None
    try:
        return ParsedValue(_DECODER.decode(text), complete=True)
    except (ValueError, RecursionError):
        work.take(_STEPS_OF_AN_ERROR)
    return read_tolerant(text, work)


def repair_json(text: str, work: WorkBudget) -> ParsedValue | None:
    """Guess what object or list ``text`` was meant to be; None when there is no telling, or it takes too much work."""
    openers = text.count("{") + text.count("[")
    if openers > MAX_DEPTH or openers * len(text) > _MOST_GUESSING or not work.take_repair(len(text)):
        return None
    # Loading it takes as long as the rest of this package; most texts never need it.
    import json_repair

    try:
        value: Any = json_repair.repair_json(text, return_objects=True, skip_json_loads=True)
    except Exception:  # noqa: BLE001 - a repair library fed with damage may fail in any way; the text is then no call
        return None
    return ParsedValue(value, complete=False, certain=False) if isinstance(value, dict | list) else None
