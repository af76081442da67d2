"""Compares the calls of a run with expected calls, or with those of another run; asserts on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from graph_agent.base._internal.text import excerpt, to_json_safe, visible_json
from graph_agent.base.errors import ConfigError
from graph_agent.core.state.events import Event
from graph_agent.devtools.testing.recording import recording_of
from graph_agent.session.results import RunResult, planned_calls, since_last_input

Order = Literal["exact", "waves", "any", "subset"]
"""`waves`: in this order, but free within a wave of the run; `exact`: in the order planned; `any`: all of them, in any
order; `subset`: at least these, in any order."""
ABSENT = "(absent)"
"""Stands for a value that only the other side of a difference has."""
NO_CALL = "no call"
_SHOWN_CHARS = 160


@dataclass(frozen=True, slots=True)
class WaveCall:
    """A call of a run, and its wave."""

    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    arguments: dict[str, Any]
    """The arguments it ran with; those of the plan for a call that never started."""
    status: str | None = None
    """How it ended; None while it is unfinished."""
    wave: int = 1
    """Number of its wave, from 1, over all turns of the run."""
    id: str = ""
    """Its id, unique within its turn."""


class ExpectedCall(Protocol):
    """A call that a run must make."""

    @property
    def name(self) -> str:
        """Name of the tool, or `delegate_to_<name>`."""
        ...

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The arguments, of which a value may be a matcher (see `compare_values`); None for any arguments."""
        ...

    @property
    def match(self) -> Literal["exact", "partial"]:
        """Whether the call may have further arguments: `partial` permits them."""
        ...

    @property
    def status(self) -> str | None:
        """How the call ended; None for any status."""
        ...


@dataclass(frozen=True, slots=True)
class CallDifference:
    """The first place where calls differ."""

    wave: int
    """The wave, from 1; 0 where the order does not count."""
    call: str
    """Name of the call."""
    path: str
    """JSON path in the call, such as `$.arguments.city`; `$` for the whole call."""
    expected: Any
    """The expected value."""
    actual: Any
    """The value of the run."""

    def __str__(self) -> str:
        where = f"wave {self.wave}: {self.call}" if self.wave else self.call
        path = "" if self.path == "$" else f" {self.path}"
        return f"{where}{path}: expected {_shown(self.expected)}, got {_shown(self.actual)}"

    def as_json(self) -> dict[str, Any]:
        """Return the difference as plain JSON."""
        values = {"expected": to_json_safe(self.expected), "actual": to_json_safe(self.actual)}
        return {"wave": self.wave, "call": self.call, "path": self.path, **values}


def _shown(value: Any) -> str:
    return excerpt(value if value in (ABSENT, NO_CALL) else visible_json(to_json_safe(value)), _SHOWN_CHARS)


def wave_calls(results: Sequence[RunResult]) -> list[WaveCall]:
    """Return the calls of the turns of a run, in the order planned."""
    found: list[WaveCall] = []
    for result in results:
        step, wave = 0, found[-1].wave if found else 0
        for tracked, call in zip(planned_calls(since_last_input(result.events)), result.calls, strict=True):
            entry = tracked.started or tracked.result
            at = entry["step"] if entry is not None else step or 1
            if at != step:
                step, wave = at, wave + 1
            found.append(WaveCall(call.name, call.arguments, call.status, wave, call.id))
    return found


def waves_of(calls: Sequence[WaveCall]) -> list[list[WaveCall]]:
    """Return the calls of a run, divided into its waves."""
    waves: dict[int, list[WaveCall]] = {}
    for call in calls:
        waves.setdefault(call.wave, []).append(call)
    return [*waves.values()]


def compare_calls(
    expected: Sequence[ExpectedCall | Sequence[ExpectedCall]], actual: Sequence[WaveCall], order: Order = "waves"
) -> CallDifference | None:
    """Return the first difference between expected calls and those of a run; None if they fit.

    A sequence within the expected calls is one whole wave; then each call outside of one is a wave, too.
    """
    stated = [[*each] if isinstance(each, Sequence) else [each] for each in expected]
    listed = [call for group in stated for call in group]
    if order in ("any", "subset"):
        return _compare_group(0, listed, actual, may_have_more=order == "subset")
    waves = [[call] for call in actual] if order == "exact" else waves_of(actual)
    if order == "exact":
        groups = [[each] for each in listed]
    elif any(isinstance(each, Sequence) for each in expected):
        groups = stated
    else:
        groups, at = [], 0
        for wave in waves:
            groups.append(listed[at : at + len(wave)])
            at += len(wave)
        groups += [[each] for each in listed[at:]]
    for index in range(max(len(groups), len(waves))):
        wave = waves[index] if index < len(waves) else []
        number = wave[0].wave if wave else waves[-1][0].wave + 1 if waves else 1
        difference = _compare_group(number, groups[index] if index < len(groups) else [], wave)
        if difference is not None:
            return difference
    return None


def compare_runs(one: Sequence[WaveCall], other: Sequence[WaveCall]) -> CallDifference | None:
    """Return the first difference between the waves of two runs; the order within a wave does not count."""
    return compare_calls([[_Exactly(call) for call in wave] for wave in waves_of(one)], other)


class _Exactly:
    """A call of another run, in whose arguments no value is a matcher."""

    match: Literal["exact"] = "exact"
    status = None

    def __init__(self, call: WaveCall) -> None:
        self.name, self.arguments = call.name, call.arguments


def _compare_group(
    number: int, expected: Sequence[ExpectedCall], actual: Sequence[WaveCall], *, may_have_more: bool = False
) -> CallDifference | None:
    """Return the first difference between calls in any order; None if each expected call fits another call."""
    partners = _matched([[_compare_call(each, call) is None for call in actual] for each in expected])
    missing = next((each for each, partner in zip(expected, partners, strict=True) if partner is None), None)
    rest = [call for index, call in enumerate(actual) if index not in partners]
    if missing is not None:
        # A call of the same name is most likely the one that is meant.
        if (near := next((call for call in rest if call.name == missing.name), None)) is not None:
            path, wanted, found = _compare_call(missing, near) or ("$", missing.name, near.name)
            return CallDifference(number, missing.name, path, wanted, found)
        found = NO_CALL if may_have_more or not rest else {rest[0].name: rest[0].arguments}
        return CallDifference(number, missing.name, "$", {missing.name: missing.arguments or {}}, found)
    if rest and not may_have_more:
        return CallDifference(number, rest[0].name, "$", NO_CALL, {rest[0].name: rest[0].arguments})
    return None


def _matched(fits: Sequence[Sequence[bool]]) -> list[int | None]:
    """Return a largest assignment: for each row, the index of its column; None for a row without one."""
    row_of: dict[int, int] = {}

    def assign(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in row_of or assign(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    for row in range(len(fits)):
        assign(row, set())
    column_of = {row: column for column, row in row_of.items()}
    return [column_of.get(row) for row in range(len(fits))]


_Found = tuple[str, Any, Any]
"""JSON path, expected and actual value of a difference."""


def _compare_call(expected: ExpectedCall, actual: WaveCall) -> _Found | None:
    if expected.name != actual.name:
        return "$.name", expected.name, actual.name
    found = None
    if expected.arguments is not None:
        literal, partial = isinstance(expected, _Exactly), expected.match == "partial"
        found = compare_values(expected.arguments, actual.arguments, "$.arguments", partial=partial, literal=literal)
    if found is None and expected.status not in (None, actual.status):
        return "$.status", expected.status, actual.status
    return found


def compare_values(
    expected: Any, actual: Any, path: str = "$", *, partial: bool = False, literal: bool = False
) -> _Found | None:
    """Return path and values of the first difference between JSON values; None if they fit.

    The expected value, or one within it, may be a matcher: `{$any: true}`, `{$matches: PATTERN}`, `{$contains: TEXT}`,
    `{$schema: {…}}` or `{$partial: {…}}`; with `literal`, it is none. A Python object that is equal to the value, such
    as `unittest.mock.ANY`, fits, too. With `partial`, the actual mapping may have further keys. Raises `ValueError` for
    an invalid matcher.
    """
    if isinstance(expected, Mapping) and len(expected) == 1 and not literal:
        ((key, given),) = expected.items()
        if isinstance(key, str) and key.startswith("$"):
            return _compare_matcher(key, given, actual, path)
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key, value in expected.items():
            if key not in actual:
                return f"{path}.{key}", value, ABSENT
            if (found := compare_values(value, actual[key], f"{path}.{key}", literal=literal)) is not None:
                return found
        further = next((key for key in actual if key not in expected), None)
        return None if partial or further is None else (f"{path}.{further}", ABSENT, actual[further])
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        for index in range(max(len(expected), len(actual))):
            place = f"{path}[{index}]"
            if index >= len(actual):
                return place, expected[index], ABSENT
            if index >= len(expected):
                return place, ABSENT, actual[index]
            if (found := compare_values(expected[index], actual[index], place, literal=literal)) is not None:
                return found
        return None
    # In JSON, true is no number.
    is_other_kind = isinstance(expected, int | float) and isinstance(expected, bool) != isinstance(actual, bool)
    return None if expected == actual and not is_other_kind else (path, expected, actual)


def _compare_matcher(kind: str, given: Any, actual: Any, path: str) -> _Found | None:
    difference = path, {kind: given}, actual
    if kind == "$partial":
        return compare_values(given, actual, path, partial=True)
    return None if _matcher(kind)(given, actual) else difference


def check_matchers(expected: Any) -> None:
    """Check the matchers in a value; raise `ValueError` if one is unknown, or its pattern or schema is not valid."""
    if isinstance(expected, list | tuple):
        for each in expected:
            check_matchers(each)
    if not isinstance(expected, Mapping):
        return
    ((key, given),) = expected.items() if len(expected) == 1 else (("", None),)
    if not isinstance(key, str) or not key.startswith("$") or key == "$partial":
        for each in expected.values():
            check_matchers(each)
        return
    try:
        _matcher(key)(given, "")
    except (ConfigError, re.error, TypeError) as error:
        raise ValueError(f"{{{key}: {given!r}}}: {error}") from None


def _matcher(kind: str) -> Callable[[Any, Any], bool]:
    if kind not in _MATCHERS:
        raise ValueError(f"{kind!r} is no matcher; write {', '.join(_MATCHERS)} or $partial")
    return _MATCHERS[kind]


def _fits_schema(schema: Any, actual: Any) -> bool:
    # Imported here: most comparisons need no schema.
    from jsonschema import ValidationError

    from graph_agent.base._internal.json_schema import SchemaCheck

    try:
        SchemaCheck(schema, "$schema")(actual)
    except ValidationError:
        return False
    return True


_MATCHERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$any": lambda given, actual: True,
    "$matches": lambda given, actual: isinstance(actual, str) and re.search(given, actual) is not None,
    "$contains": lambda given, actual: isinstance(actual, str | list) and given in actual,
    "$schema": _fits_schema,
}


Expected: TypeAlias = str | tuple[str, Mapping[str, Any]] | Mapping[str, Any]
"""A call: its name, its name and arguments, or `{"name", "arguments", "status"}` with the name at least."""


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: Mapping[str, Any] | None
    match: Literal["exact", "partial"]
    status: str | None = None


def assert_calls(
    run: RunResult | Sequence[RunResult] | Sequence[Event],
    expected: Sequence[Expected | Sequence[Expected]],
    *,
    order: Order = "waves",
    partial: bool = False,
) -> None:
    """Assert that a run has made the expected calls of tools and delegates.

    Args:
        run: A result, or several in their order; or events, such as `await session.events()`, for all inputs.
        expected: The calls. An argument may be `ANY`, or what `contains` returns. A list within the list is one whole
            wave; then each call outside of one is a wave, too.
        order: `waves`: the calls in this order, but free within a wave of the run; `exact`: in the order planned;
            `any`: all of them, in any order; `subset`: at least these, in any order.
        partial: Whether calls may have further arguments. Default: False.

    Raises:
        AssertionError: At the first difference, with its wave, call, JSON path and both values, and the calls made.
        ConfigError: If `run` or an expected call has another form.
    """
    __tracebackhide__ = True
    made = _calls_of(run)
    match: Literal["exact", "partial"] = "partial" if partial else "exact"
    wanted = [
        [_call(each, match) for each in part] if isinstance(part, list) else _call(part, match) for part in expected
    ]
    difference = compare_calls(wanted, made, order)
    if difference is not None:
        waves = [f"  wave {wave[0].wave}: {', '.join(map(_wave_call, wave))}" for wave in waves_of(made)]
        raise AssertionError("\n".join([str(difference), "The run has made:", *(waves or ["  no calls"])]))


def contains(part: Mapping[str, Any] | str | Any) -> Mapping[str, Any]:
    """Return a value that fits each argument which contains a part.

    Args:
        part: Keys and values for a mapping, a piece for a text, an item for a list.
    """
    return {"$partial": part} if isinstance(part, Mapping) else {"$contains": part}


def _call(given: Any, match: Literal["exact", "partial"]) -> _Call:
    match given:
        case str():
            return _Call(given, None, match)
        case (str() as name, Mapping() as arguments):
            return _Call(name, arguments, match)
        case {"name": str() as name} if given.keys() <= {"name", "arguments", "status"}:
            return _Call(name, given.get("arguments"), match, given.get("status"))
    raise ConfigError(
        f'{given!r} is no expected call; write "weather", ("weather", {{"city": "Bergen"}}), or a dict with the keys '
        "name, arguments and status."
    )


def _calls_of(run: Any) -> list[WaveCall]:
    if isinstance(run, RunResult):
        return wave_calls([run])
    if not isinstance(run, Sequence) or isinstance(run, str):
        raise ConfigError(f"assert_calls() takes a RunResult or `await session.events()`, not {type(run).__name__}.")
    results = [each for each in run if isinstance(each, RunResult)]
    if results:
        return wave_calls(results)
    steps = [step for each in recording_of("", run, ()).inputs for step in each.steps if step.calls]
    return [
        WaveCall(call.name, dict(call.arguments), call.result.status if call.result else None, wave, call.id)
        for wave, step in enumerate(steps, 1)
        for call in step.calls
    ]


def _wave_call(call: WaveCall) -> str:
    return f"{call.name}({visible_json(call.arguments)})"
