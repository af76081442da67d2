"""Lenient parsing of JSON from a model, in bounded time."""

from __future__ import annotations

import json
from typing import Any

from graph_agent.calls.read_json import ends_inside_value, read_json
from graph_agent.calls.work import WorkBudget

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
