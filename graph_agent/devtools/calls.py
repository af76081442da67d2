"""Compares the calls of a run with expected calls, or with those of another run; asserts on them.

A wave is the calls of one plan, which run in parallel. A turn is one input of a run. A matcher is an expected value
that fits many, such as `{"$contains": "Bergen"}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, Protocol, TypeAlias

from graph_agent.base._internal.text import excerpt, to_json_safe, visible_json
from graph_agent.base.errors import ConfigError
from graph_agent.base.history.events import NOT_RUN, Event
from graph_agent.devtools.input_differences import pair_calls
from graph_agent.devtools.json_values import ABSENT, ValueDifference, value_differences
from graph_agent.devtools.recording import recording_of
from graph_agent.session.results import RunResult, planned_calls, since_last_input

CallOrder = Literal["exact", "waves", "any", "subset"]
"""`waves`: in this order, but free within a wave of the run; `exact`: in the order planned; `any`: all of them, in any
order; `subset`: at least these, in any order."""
RAN = "ran"
"""Stands in an expected call for the status of any call that ran, successfully or not."""
NO_CALL = "no call"
"""Stands for a call in a difference where one side has none."""
_SHOWN_CHARS = 160


@dataclass(frozen=True, slots=True)
class CallInWave:
    """A call of a run, with the number of its wave."""

    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    arguments: dict[str, Any]
    """The arguments it ran with; those of the plan for a call that never started."""
    status: str | None = None
    """How the call ended, such as `success`; None while it is unfinished."""
    wave: int = 1
    """Number of its wave, from 1, over all turns of the run."""
    id: str = ""
    """Id of the call, unique within its turn."""


class CallExpectation(Protocol):
    """A call that a run must make."""

    @property
    def name(self) -> str:
        """Name of the tool, or `delegate_to_<name>`."""
        ...

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The arguments, of which a value may be a matcher (see `value_differences`); None for any arguments."""
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
        """Return the difference as plain JSON; a value that does not exist is `(absent)`."""
        values = {"expected": _json_of(self.expected), "actual": _json_of(self.actual)}
        return {"wave": self.wave, "call": self.call, "path": self.path, **values}


def _shown(value: Any) -> str:
    """Return a value for a message, as JSON of at most `_SHOWN_CHARS` characters; `(absent)` and `no call` without
    quotes.
    """
    shown = _json_of(value)
    return excerpt(shown if value is ABSENT or value == NO_CALL else visible_json(shown), _SHOWN_CHARS)


def _json_of(value: Any) -> Any:
    """Return a value as plain JSON; `(absent)` for `ABSENT`."""
    return "(absent)" if value is ABSENT else to_json_safe(value)


def wave_calls(results: Sequence[RunResult]) -> list[CallInWave]:
    """Return the calls of the turns of a run, in the order planned, with waves numbered from 1 over all turns.

    A call without an event of its own belongs to the wave of the call before it.
    """
    found: list[CallInWave] = []
    for result in results:
        step, wave = 0, found[-1].wave if found else 0
        for tracked, call in zip(planned_calls(since_last_input(result.events)), result.calls, strict=True):
            entry = tracked.started or tracked.result
            # A call that never started has no event with its step; it belongs to the wave before it.
            at = entry["step"] if entry is not None else step or 1
            if at != step:
                step, wave = at, wave + 1
            found.append(CallInWave(call.name, call.arguments, call.status, wave, call.id))
    return found


def waves_of(calls: Sequence[CallInWave]) -> list[list[CallInWave]]:
    """Return the calls of a run as one list for each wave, in the order in which the waves first occur."""
    waves: dict[int, list[CallInWave]] = {}
    for call in calls:
        waves.setdefault(call.wave, []).append(call)
    return [*waves.values()]


def compare_calls(
    expected: Sequence[CallExpectation | Sequence[CallExpectation]],
    actual: Sequence[CallInWave],
    order: CallOrder = "waves",
) -> CallDifference | None:
    """Return the first difference between expected calls and those of a run; None if they fit.

    Args:
        expected: The expected calls. A sequence within them is one whole wave. If there is any, each call outside of a
            sequence is a wave, too. With another order than `waves`, the calls in sequences count one by one.
        actual: The calls of the run, in the order planned.
        order: What must be in order, see `assert_calls`.

    Raises:
        ValueError: For an invalid matcher in expected arguments.
    """
    stated = [[*each] if isinstance(each, Sequence) else [each] for each in expected]
    listed = [call for group in stated for call in group]
    # Without an order, waves have no meaning: all calls are one group.
    if order in ("any", "subset"):
        return _compare_group(0, listed, actual, may_have_more=order == "subset")
    waves = [[call] for call in actual] if order == "exact" else waves_of(actual)
    if order == "exact":
        groups = [[each] for each in listed]
    elif any(isinstance(each, Sequence) for each in expected):
        groups = stated
    else:
        # Without lists, the run decides where a wave ends: an agent may plan two of the calls in one wave or in two.
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


def compare_runs(one: Sequence[CallInWave], other: Sequence[CallInWave]) -> CallDifference | None:
    """Return the first difference between the waves of two runs; None if they are equal.

    It is in the first wave that differs: an argument of a call that both have, or else a call that only one has. The
    order within a wave, the ids and the outcomes of calls do not count. `expected` of the difference is the value of
    `one`, `actual` that of `other`.
    """
    for number, (wave, now) in enumerate(zip_longest(waves_of(one), waves_of(other), fillvalue=()), 1):
        paired = pair_calls(*([(call.name, call.arguments) for call in calls] for calls in (wave, now)))
        for at, partner in paired.changed:
            found = next(value_differences(wave[at].arguments, now[partner].arguments, "$.arguments"))
            return CallDifference(number, wave[at].name, found.path, found.recorded, found.now)
        missing, added = ([calls[at] for at in where] for calls, where in ((wave, paired.missing), (now, paired.added)))
        if missing or added:
            values = [{call.name: call.arguments} for each in (missing, added) for call in each[:1]]
            both = values if len(values) > 1 else [NO_CALL, *values] if added else [*values, NO_CALL]
            return CallDifference(number, (missing or added)[0].name, "$", *both)
    return None


def _compare_group(
    number: int, expected: Sequence[CallExpectation], actual: Sequence[CallInWave], *, may_have_more: bool = False
) -> CallDifference | None:
    """Return the first difference between calls in any order; None if each expected call fits a call of its own.

    An expected call without a partner comes before a call that is not expected, and is compared with a remaining call
    of its name, if there is one. `number` is the wave that a difference names; `may_have_more` permits calls that are
    not expected.
    """
    partners = _matched([[_compare_call(each, call) is None for call in actual] for each in expected])
    missing = next((each for each, partner in zip(expected, partners, strict=True) if partner is None), None)
    rest = [call for index, call in enumerate(actual) if index not in partners]
    if missing is not None:
        # A call of the same name is most likely the one that is meant.
        if (near := next((call for call in rest if call.name == missing.name), None)) is not None:
            found = _compare_call(missing, near) or ValueDifference("$", missing.name, near.name)
            return CallDifference(number, missing.name, found.path, found.recorded, found.now)
        other = NO_CALL if may_have_more or not rest else {rest[0].name: rest[0].arguments}
        return CallDifference(number, missing.name, "$", {missing.name: missing.arguments or {}}, other)
    if rest and not may_have_more:
        return CallDifference(number, rest[0].name, "$", NO_CALL, {rest[0].name: rest[0].arguments})
    return None


def _matched(fits: Sequence[Sequence[bool]]) -> list[int | None]:
    """Return a largest assignment: for each row, the index of its column; None for a row without one.

    `fits[row][column]` is whether the two may be assigned.
    """
    # Not greedy: a call that fits several others could take the only partner of another one.
    row_of: dict[int, int] = {}

    def assign(row: int, tried: set[int]) -> bool:
        """Assign a column to a row, and move other rows if needed; return whether that is possible.

        Columns in `tried` are not tried again; those that this call tries are added.
        """
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


def _compare_call(expected: CallExpectation, actual: CallInWave) -> ValueDifference | None:
    """Return the first difference between an expected call and a call of a run; None if it fits.

    Name, arguments and status are compared in this order; expected arguments or a status of None fit anything. The
    status `RAN` fits each status of a call that ran.
    """
    if expected.name != actual.name:
        return ValueDifference("$.name", expected.name, actual.name)
    found = None
    if expected.arguments is not None:
        partial = expected.match == "partial"
        given = expected.arguments, actual.arguments, "$.arguments"
        found = next(value_differences(*given, matches=True, partial=partial), None)
    if found is None and expected.status == RAN and (actual.status is None or actual.status in NOT_RUN):
        return ValueDifference("$.status", "a call that ran", actual.status or "unfinished")
    if found is None and expected.status not in (None, RAN, actual.status):
        return ValueDifference("$.status", expected.status, actual.status)
    return found


Expected: TypeAlias = str | tuple[str, Mapping[str, Any]] | Mapping[str, Any]
"""A call: its name, its name and arguments, or `{"name", "arguments", "status"}` with the name at least. Without a
status, the call must have run; the status None fits every call."""


@dataclass(frozen=True, slots=True)
class _Call:
    """An expected call in the form that `compare_calls` needs."""

    name: str
    arguments: Mapping[str, Any] | None
    match: Literal["exact", "partial"]
    status: str | None = RAN


def assert_calls(
    run: RunResult | Sequence[RunResult] | Sequence[Event],
    expected: Sequence[Expected | Sequence[Expected]],
    *,
    order: CallOrder = "waves",
    partial: bool = False,
) -> None:
    """Assert that a run has made the expected calls of tools and delegates.

    Args:
        run: A result, or several in their order; or events, such as `await session.events()`, for all inputs.
        expected: The calls, which must have run if they name no status. An argument may be `ANY`, or what `contains`
            returns. A list within the list is one whole wave (the calls of one plan). If there is any such list, each
            call outside of the lists is a wave, too. With another `order` than `waves`, such lists have no effect.
        order: `waves`: the calls in this order, but free within a wave of the run; `exact`: in the order planned;
            `any`: all of them, in any order; `subset`: at least these, in any order.
        partial: Whether calls may have further arguments. Default: False.

    Raises:
        AssertionError: At the first difference, with its wave, call, JSON path and both values, and the calls made.
        ConfigError: If `run` or an expected call has another form.
        ValueError: If an expected argument is an invalid matcher.
    """
    # pytest then shows the line of the test, not this function.
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
    """Return a matcher for `assert_calls`: an argument fits if it contains a part.

    Args:
        part: Keys and values for a mapping, a piece for a text, an item for a list.
    """
    return {"$partial": part} if isinstance(part, Mapping) else {"$contains": part}


def _call(given: Any, match: Literal["exact", "partial"]) -> _Call:
    """Convert an expected call to a `_Call`; raise `ConfigError` for an unknown form.

    Known are a name, a pair of name and arguments, and a dict with `name` and, optionally, `arguments` and `status`.
    Without a status, the call must have run.
    """
    match given:
        case str():
            return _Call(given, None, match)
        case (str() as name, Mapping() as arguments):
            return _Call(name, arguments, match)
        case {"name": str() as name} if given.keys() <= {"name", "arguments", "status"}:
            return _Call(name, given.get("arguments"), match, given.get("status", RAN))
    raise ConfigError(
        f'{given!r} is no expected call; write "weather", ("weather", {{"city": "Bergen"}}), or a dict with the keys '
        "name, arguments and status."
    )


def _calls_of(run: Any) -> list[CallInWave]:
    """Return the calls of the run that `assert_calls` was given: a result, a list of results, or events.

    Of a list that has any result, the other items are ignored. Raises `ConfigError` for another type.
    """
    if isinstance(run, RunResult):
        return wave_calls([run])
    if not isinstance(run, Sequence) or isinstance(run, str):
        raise ConfigError(f"assert_calls() takes a RunResult or `await session.events()`, not {type(run).__name__}.")
    results = [each for each in run if isinstance(each, RunResult)]
    if results:
        return wave_calls(results)
    steps = [step for each in recording_of("", run, ()).inputs for step in each.steps if step.calls]
    return [
        CallInWave(call.name, dict(call.arguments), call.result.status if call.result else None, wave, call.id)
        for wave, step in enumerate(steps, 1)
        for call in step.calls
    ]


def _wave_call(call: CallInWave) -> str:
    """Return a call for a message, such as `weather({"city": "Bergen"})`."""
    return f"{call.name}({visible_json(call.arguments)})"
