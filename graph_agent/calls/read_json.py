"""Parsing of one JSON value: strict, else tolerant, with json_repair as the last resort."""

from __future__ import annotations

import json
from typing import Any

from graph_agent.calls.call import MAX_DEPTH
from graph_agent.calls.tolerant import ParsedValue, integer, read_tolerant
from graph_agent.calls.work import WorkBudget

# NaN, Infinity and numbers beyond a float's range become non-finite floats, so that the caller can refuse them.
_DECODER = json.JSONDecoder(strict=False, parse_int=integer)
_MOST_GUESSING = 60_000  # openers times characters; the cost of a repair grows with both
_VALUE_ENDS = ("}", "]", '"', "'", "”", "’", ",", "`")
_STEPS, _CHARACTERS_A_STEP, _STEPS_OF_AN_ERROR = 8, 16, 16


def read_json(text: str, work: WorkBudget) -> ParsedValue | None:
    """Parse ``text`` as an object or list, even if damaged or truncated; None if that needs guessing or more work.

    Never raises: nesting beyond ``MAX_DEPTH`` and a spent budget give None. A number that JSON cannot hold becomes a
    non-finite float.
    """
    if not work.take(len(text) // _CHARACTERS_A_STEP + _STEPS):
        return None
    try:
        return ParsedValue(_DECODER.decode(text), complete=True)
    except (ValueError, RecursionError):
        work.take(_STEPS_OF_AN_ERROR)
    return read_tolerant(text, work)


def repair_json(text: str, work: WorkBudget) -> ParsedValue | None:
    """Repair ``text`` to an object or list by guessing; None if it fails or takes too much work."""
    openers = text.count("{") + text.count("[")
    if openers > MAX_DEPTH or openers * len(text) > _MOST_GUESSING or not work.take_repair(len(text)):
        return None
    # Imported here: it loads as slowly as the rest of this package, and most texts never need it.
    import json_repair

    try:
        value: Any = json_repair.repair_json(text, return_objects=True, skip_json_loads=True)
    except Exception:  # noqa: BLE001 - the repair library may raise anything on damaged text; treated as no call
        return None
    if not isinstance(value, dict | list):
        return None
    return ParsedValue(value, complete=False, certain=False, partial=not text.rstrip().endswith(_VALUE_ENDS))


def ends_inside_value(text: str) -> bool:
    """Whether an object or list ends inside one of its values, so that the value may be a part of what was meant."""
    text = text.strip()
    read = read_json(text, WorkBudget(len(text)))
    if read is not None:
        return read.partial
    return text.startswith(("{", "[")) and not text.endswith(_VALUE_ENDS)
