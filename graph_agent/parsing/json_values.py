"""Parses one JSON value: strictly, else tolerantly, with json_repair as the last resort."""

from __future__ import annotations

import json
from typing import Any

from graph_agent.parsing.tolerant import ParsedValue, WorkBudget, integer, read_tolerant
from graph_agent.types import MAX_DEPTH

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


# json_repair takes half a second for 1,000 characters that begin with 100 braces, and for 3,000 behind one bracket.
# Within these bounds the worst known texts take about a third of that. Common damage is parsed in linear time before.
_LONGEST_GUESS = 2_000
_MOST_WORK = 60_000


def parse_lenient_json(text: str) -> Any:
    """Parse the JSON value in a text: alone, in a fenced block or within prose; repairs damaged or truncated JSON.

    Raises:
        ValueError: If the text holds no JSON, or none that can be parsed in bounded time.
    """
    bare = _without_fence(text.strip())
    start, end = _outermost(bare)
    for candidate in (bare, bare[start:end]):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            pass
    if (read := read_json(bare[start:], WorkBudget(len(bare)))) is not None and isinstance(read.value, dict | list):
        return read.value
    openers = sum(bare.count(opener) for opener in "{[(")
    if openers and len(bare) <= _LONGEST_GUESS and len(bare) * openers <= _MOST_WORK:
        # Imported here: it loads slowly, and most texts never need it.
        from json_repair import repair_json

        try:
            guess: Any = repair_json(bare, return_objects=True)
        except Exception:  # noqa: BLE001 - the repair library may raise anything on damaged text; treated as no JSON
            guess = ""
        if guess != "":
            return guess
    raise ValueError("The text holds no JSON.")


def arguments_end_inside_value(text: str) -> bool:
    """Whether the arguments of a call, as JSON text, end inside a value; with or without a fence."""
    bare = _without_fence(text.strip())
    return ends_inside_value(bare[_outermost(bare)[0] :])


def _without_fence(text: str) -> str:
    if not text.startswith("```") or "\n" not in text:
        return text
    return text.partition("\n")[2].rstrip().removesuffix("```").strip()


def _outermost(text: str) -> tuple[int, int]:
    """Return the span from the first object outside a list, else the first list, to its last closing bracket."""
    brace = text.find("{")
    before = text[:brace] if brace >= 0 else text
    is_object = brace >= 0 and before.count("[") <= before.count("]")
    start = brace if is_object else max(text.find("["), 0)
    return start, text.rfind("}" if is_object else "]") + 1
