"""Steps of a backtracking regular expression: counted, not timed, so that a loaded machine changes nothing.

`Steps` runs a pattern as Python's engine does, in the same order of alternatives, and counts each test of a character
or position. `slowest_text` looks for a text on which the count grows faster than the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from typing import Any

_parser = import_module("re._parser")
_compiler = import_module("re._compiler")
_ENDLESS = 1000
"""A repeat of at most so many is a constant factor."""
_Match = Callable[[int], int]
"""Match from a position; the end of the match, or -1."""


class TooManyStepsError(Exception):
    """The count passed the limit of this run."""


class Steps:
    """Counts the steps of one pattern.

    Args:
        pattern: The pattern, of texts or bytes.
    """

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        source = pattern.pattern
        self.parsed = _parser.parse(source, pattern.flags & ~re.DEBUG)
        self._flags = pattern.flags | self.parsed.state.flags
        self._text: Any = ""
        self._limit = 0
        self.count = 0
        self._groups: dict[int, tuple[int, int]] = {}
        self._singles: dict[Any, Any] = {}
        self._match = self._sequence(list(self.parsed), self._flags, self._end)
        self._whole = self._sequence(list(self.parsed), self._flags, lambda at: at if at == len(self._text) else -1)

    def of(self, text: Any, use: str, limit: int = 10**9) -> int:
        """Return the steps of `match`, `fullmatch`, or of `scan`: all matches from left to right."""
        self._text, self.count, self._limit = text, 0, limit
        if use in ("match", "fullmatch"):
            self._groups = {}
            (self._match if use == "match" else self._whole)(0)
            return self.count
        start = 0
        while start <= len(text):
            self._groups = {}
            end = self._match(start)
            start = max(end, start + 1)
        return self.count

    def _end(self, at: int) -> int:
        return at

    def _step(self) -> None:
        self.count += 1
        if self.count > self._limit:
            raise TooManyStepsError

    def _single(self, part: Any, flags: int) -> Callable[[int], bool]:
        """Test one character or position with the real engine, so that its meaning is exactly the engine's."""
        state = _parser.State()
        state.str, state.flags = self.parsed.state.str, flags
        tester = _compiler.compile(_parser.SubPattern(state, [part]), flags)
        consumes = str(part[0]) != "AT"
        seen: dict[Any, bool] = {}

        def test(at: int) -> bool:
            self._step()
            if not consumes:
                return tester.match(self._text, at) is not None
            char = self._text[at : at + 1]
            if not char:
                return False
            if char not in seen:
                seen[char] = tester.match(char) is not None
            return seen[char]

        return test

    def _sequence(self, parts: list[Any], flags: int, then: _Match) -> _Match:
        for part in reversed(parts):
            then = self._part(part, flags, then)
        return then

    def _part(self, part: Any, flags: int, then: _Match) -> _Match:
        operation, given = str(part[0]), part[1]
        match operation:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                single = self._single(part, flags)
                return lambda at: then(at + 1) if single(at) else -1
            case "AT":
                at_test = self._single(part, flags)
                return lambda at: then(at) if at_test(at) else -1
            case "BRANCH":
                branches = [self._sequence(list(each), flags, then) for each in given[1]]
                return lambda at: self._first(branches, at)
            case "SUBPATTERN":
                group, added, removed, inner = given
                return self._group(group, list(inner), (flags | added) & ~removed, then)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self._repeat(operation, given, flags, then)
            case "ATOMIC_GROUP":
                atom = self._sequence(list(given), flags, self._end)
                return lambda at: then(end) if (end := atom(at)) >= 0 else -1
            case "ASSERT" | "ASSERT_NOT":
                direction, inner = given
                back = inner.getwidth()[0] if direction < 0 else 0
                ahead = self._sequence(list(inner), flags, self._end)
                wanted = operation == "ASSERT"
                return lambda at: then(at) if (at >= back and ahead(at - back) >= 0) is wanted else -1
            case "GROUPREF":
                return lambda at: self._reference(given, at, then)
        raise NotImplementedError(f"{operation} is not counted yet")

    def _first(self, branches: list[_Match], at: int) -> int:
        for branch in branches:
            self._step()
            if (end := branch(at)) >= 0:
                return end
        return -1

    def _group(self, group: int | None, inner: list[Any], flags: int, then: _Match) -> _Match:
        if group is None:
            return self._sequence(inner, flags, then)
        starts: list[int] = []

        def close(at: int) -> int:
            before, start = self._groups.get(group), starts.pop()
            self._groups[group] = (start, at)
            if (end := then(at)) < 0:
                starts.append(start)
                self._groups.pop(group)
                if before is not None:
                    self._groups[group] = before
            return end

        body = self._sequence(inner, flags, close)

        def open_(at: int) -> int:
            size = len(starts)
            starts.append(at)
            end = body(at)
            if end < 0:
                del starts[size:]
            return end

        return open_

    def _reference(self, group: int, at: int, then: _Match) -> int:
        self._step()
        if group not in self._groups:
            return -1
        start, stop = self._groups[group]
        same = self._text[at : at + stop - start] == self._text[start:stop]
        return then(at + stop - start) if same else -1

    def _repeat(self, operation: str, given: Any, flags: int, then: _Match) -> _Match:
        least, most, inner = int(given[0]), int(given[1]), list(given[2])
        if len(inner) == 1 and str(inner[0][0]) in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self._repeat_single(operation, least, most, self._single(inner[0], flags), then)
        if operation == "POSSESSIVE_REPEAT":
            once = self._sequence(inner, flags, self._end)

            def possessive(at: int) -> int:
                count = 0
                while count < most and (end := once(at)) >= 0:
                    count += 1
                    if end == at:
                        count = max(count, least)
                        break
                    at = end
                return then(at) if count >= least else -1

            return possessive
        # One entry for each open repetition: its count and start.
        stack: list[tuple[int, int]] = []

        def more(at: int) -> int:
            count, start = stack[-1]
            if count > least and at == start:
                return leave(at)
            if operation == "MAX_REPEAT":
                if count < most and (end := again(at, count)) >= 0:
                    return end
                return leave(at) if count >= least else -1
            if count >= least and (end := leave(at)) >= 0:
                return end
            return again(at, count) if count < most else -1

        def again(at: int, count: int) -> int:
            self._step()
            stack.append((count + 1, at))
            size = len(stack)
            end = body(at)
            del stack[size - 1 :]
            return end

        def leave(at: int) -> int:
            # The rest of the pattern may enter this repeat again.
            saved = [*stack]
            end = then(at)
            stack[:] = saved
            return end

        body = self._sequence(inner, flags, more)

        def enter(at: int) -> int:
            size = len(stack)
            stack.append((0, -1))
            end = more(at)
            del stack[size:]
            return end

        return enter

    def _repeat_single(
        self, operation: str, least: int, most: int, single: Callable[[int], bool], then: _Match
    ) -> _Match:
        def run(at: int) -> int:
            count = 0
            wanted = least if operation == "MIN_REPEAT" else most
            while count < wanted and single(at + count):
                count += 1
            if count < least:
                return -1
            if operation == "POSSESSIVE_REPEAT":
                return then(at + count)
            if operation == "MAX_REPEAT":
                for each in range(count, least - 1, -1):
                    if (end := then(at + each)) >= 0:
                        return end
                return -1
            while True:
                if (end := then(at + count)) >= 0:
                    return end
                if count >= most or not single(at + count):
                    return -1
                count += 1

        return run


def is_endless(parsed: Any) -> bool:
    """Whether a pattern has a repeat without a small maximum; the work at one position is constant without."""
    return any(int(given[1]) > _ENDLESS for operation, given in _parts(parsed) if "REPEAT" in str(operation))


def _parts(parsed: Any) -> Iterator[Any]:
    """Yield every part of a pattern, outer ones first."""
    for part in parsed:
        if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], type(_parser.LITERAL)):
            yield part
            yield from _inner_parts(part[1])


def _inner_parts(given: Any) -> Iterator[Any]:
    if isinstance(given, _parser.SubPattern):
        yield from _parts(given)
    elif isinstance(given, tuple | list):
        for each in given:
            yield from _inner_parts(each)


def _samples(parts: Any, most: int = 4) -> list[str]:
    """Return a few short texts that a sequence matches; what a look-around wants is part of them."""
    texts = [""]
    for part in parts:
        texts = [before + own for own, before in product(_own_samples(part), texts)][:most]
    return texts


def _own_samples(part: Any) -> list[str]:
    operation, given = str(part[0]), part[1]
    match operation:
        case "LITERAL":
            return [chr(given)]
        case "NOT_LITERAL":
            return ["a" if given != ord("a") else "b"]
        case "ANY":
            return ["a"]
        case "IN":
            return _members(given)[:2]
        case "BRANCH":
            return [sample for each in given[1] for sample in _samples(each, 1)][:6]
        case "SUBPATTERN":
            return _samples(given[3])
        case "ATOMIC_GROUP":
            return _samples(given)
        case "ASSERT":
            return ["", *_samples(given[1], 2)]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least = int(given[0])
            inner = _samples(given[2], 2)
            return [each * (least or 1) for each in inner] if least else ["", *inner[:1]]
    return [""]


_TRIED = [" ", "a", "0", "\n", "_", "-", "!", '"', "{", "é", "\\", ".", "Z"]


def _members(given: Any) -> list[str]:
    """Return characters of a set: its literals, ends of its ranges, and usual characters."""
    own = [chr(value) for kind, value in given if str(kind) == "LITERAL"]
    own += [chr(value[0]) for kind, value in given if str(kind) == "RANGE"]
    state = _parser.State()
    state.str, state.flags = "", 0
    tester = _compiler.compile(_parser.SubPattern(state, [(_parser.IN, given)]), re.UNICODE)
    found = [each for each in [*own, *_TRIED] if tester.match(each)]
    return list(dict.fromkeys(found)) or ["a"]


def _attacks(parsed: Any) -> Iterator[tuple[str, str, str]]:
    """Yield a prefix, a part to repeat, and a suffix of adversarial texts.

    A repeat is entered by each text that leads to it, fed with what its body matches, or with what leads to it again.
    """
    parts = list(_parts(parsed))
    letters = [sample for operation, given in parts for sample in _letters(str(operation), given)]
    letters = list(dict.fromkeys(letters))[:16]
    bodies = [
        sample
        for operation, given in parts
        if "REPEAT" in str(operation) and int(given[1]) > _ENDLESS
        for sample in _samples(given[2], 3)
        if sample
    ]
    leads = list(dict.fromkeys(["", *_leads(parsed, [""])]))[:24]
    pumps = list(dict.fromkeys([*letters, *bodies[:16]]))
    whole = [each for each in _samples(parsed, 3) if each]
    again = [lead + body for lead in leads if lead for body in ("", *bodies[:3], " ")]
    for pump in dict.fromkeys([*pumps, *leads[1:], *again[:40], *whole]):
        for suffix in ("", "\x00", "\\"):
            yield "", pump, suffix
    for lead in leads[1:]:
        for pump in pumps:
            yield lead, pump, "\x00"


def _letters(operation: str, given: Any) -> list[str]:
    if operation == "IN":
        return _members(given)[:3]
    return [chr(given)] if operation == "LITERAL" else []


def _leads(parts: Any, before: list[str]) -> Iterator[str]:
    """Yield texts that lead to each endless repeat."""
    for part in parts:
        operation, given = str(part[0]), part[1]
        if "REPEAT" in operation:
            if int(given[1]) > _ENDLESS:
                yield from before
            yield from _leads(given[2], before)
        elif operation == "BRANCH":
            for each in given[1]:
                yield from _leads(each, before)
        elif operation == "SUBPATTERN":
            yield from _leads(given[3], before)
        elif operation in ("ATOMIC_GROUP", "ASSERT", "ASSERT_NOT"):
            yield from _leads(given[1] if operation != "ATOMIC_GROUP" else given, before)
        before = [text + own for own, text in product(_own_samples(part), before)][:3]


_SCREEN, _GROWN = 8, 2_000
"""Repetitions of a first look, and characters of a second at texts that are suspicious in the first."""
_MOST_STEPS = 400
"""Steps for each character that a linear pattern may take; a bounded repeat may be tried again at each."""


def slowest_text(pattern: re.Pattern[Any], use: str) -> tuple[str, str, str] | None:
    """Return a prefix, a repeated part and a suffix on which the steps outgrow the text; None if there are none.

    Args:
        pattern: The pattern.
        use: `match`, `fullmatch` or `scan`.
    """
    steps = Steps(pattern)
    if not is_endless(steps.parsed):
        return None
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    try:
        for attack in _attacks(steps.parsed):
            if not _is_linear(steps, attack, use):
                return attack
    finally:
        sys.setrecursionlimit(limit)
    return None


def _is_linear(steps: Steps, attack: tuple[str, str, str], use: str) -> bool:
    prefix, pump, suffix = attack

    def count(repeats: int) -> int:
        text = prefix + pump * repeats + suffix
        given = text.encode() if isinstance(steps.parsed.state.str, bytes) else text
        return steps.of(given, use, limit=_MOST_STEPS * (len(text) + 100))

    try:
        # The second difference of a linear count is zero but for the ends of the text.
        repeats = _SCREEN if len(pump) <= _SCREEN else _SCREEN // 2
        one, two, three = (count(repeats * times) for times in (1, 2, 3))
        if three - 2 * two + one <= _SCREEN:
            return True
        # Bounded repeats look quadratic up to their bound.
        grown = -(-_GROWN // len(pump))
        return count(2 * grown) <= 2.6 * count(grown)
    except TooManyStepsError:
        return False
