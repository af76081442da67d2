"""Extents of bracketed values in text, with respect to strings and comments.

A text with many unclosed brackets would make one search per bracket quadratic. One walk therefore records every bracket
it passes, and later lookups inside it use the record. Only a bracket that was inside a string in all earlier walks
starts another walk.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from graph_agent.calls.work import WorkBudget

_TOKEN = re.compile(
    r"""
    [{}\[\]]
    # Possessive, and the closing quote optional: an unclosed string runs to the end instead of being tried again.
    | "[^"\\]*+(?:\\.[^"\\]*+)*+"?
    # An apostrophe opens a string only where a value may start, and closes it only where a value may end.
    | (?<=[\s{\[(,:=])'(?:[^'\\]++|\\.|'(?!\s*+(?:[,:}\])]|\Z)))*+'?
    | (?<!:)//[^\n]*+
    | /\*[^*]*+(?:\*(?!/)[^*]*+)*+(?:\*/)?
    # JSON holds none of these outside strings: a tag or a fence ends a truncated value.
    | (?P<stop></?[A-Za-z|｜] | ```)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENER = {"}": "{", "]": "["}
_STEPS, _CHARACTERS_A_STEP = 8, 8


class Extent(NamedTuple):
    """The extent of one opening bracket."""

    end: int
    """Index after the closing bracket, or the end of the text that may belong to the value."""
    closed: bool
    """Whether its own closing bracket was found."""
    depth: int
    """Levels of brackets inside it; 0 for none."""
    last_close: int
    """Index after the last bracket closed inside it; its own start if there is none."""


class Extents:
    """The extents of one text, computed on demand and cached."""

    def __init__(self, text: str, work: WorkBudget) -> None:
        self._text = text
        self._work = work
        self._known: dict[int, Extent] = {}

    def at(self, start: int) -> Extent:
        """Return the extent of the bracket (``{`` or ``[``) at index ``start``; an empty one if the budget is spent."""
        known = self._known.get(start)
        if known is None and self._work.left > _STEPS:
            self._walk(start)
            known = self._known.get(start)
        return known or Extent(start + 1, closed=False, depth=0, last_close=start)

    def _walk(self, start: int) -> None:
        text, known, find = self._text, self._known, _TOKEN.search
        stack: list[int] = []
        depths: list[int] = []
        opened = {"{": 0, "[": 0}
        position, end, last_close = start, len(text), start

        def close(end: int, *, closed: bool) -> None:
            nonlocal last_close
            at, depth = stack.pop(), depths.pop()
            opened[text[at]] -= 1
            known[at] = Extent(end, closed, depth, max(at, last_close))
            if closed:
                last_close = end
            if depths and depths[-1] <= depth:
                depths[-1] = depth + 1

        steps, allowed = _STEPS, self._work.left
        while steps <= allowed and (token := find(text, position)) is not None:
            steps += 1 + (token.end() - position) // _CHARACTERS_A_STEP
            if token["stop"]:
                end = token.start()
                break
            first = text[token.start()]
            position = token.end()
            if first in opened:
                before = known.get(token.start())
                if before is not None and before.closed:
                    position = last_close = before.end
                    if depths[-1] <= before.depth:
                        depths[-1] = before.depth + 1
                    continue
                stack.append(token.start())
                depths.append(0)
                opened[first] += 1
            elif first in _OPENER and opened[_OPENER[first]]:
                while text[stack[-1]] != _OPENER[first]:
                    close(token.start(), closed=False)
                close(position, closed=True)
                if not stack:
                    break
        while stack:
            close(end, closed=False)
        self._work.take(min(steps, allowed))
