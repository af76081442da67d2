"""Compares the calls of a run with expected calls, and raises `AssertionError`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from graph_agent._internal.text import visible_json
from graph_agent.errors import ConfigError
from graph_agent.session.results import RunResult
from graph_agent.state.events import Event
from graph_agent.testing.calls import Order, WaveCall, compare_calls, wave_calls, waves_of
from graph_agent.testing.recording import recording_of

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
        waves = [f"  wave {wave[0].wave}: {', '.join(map(_shown, wave))}" for wave in waves_of(made)]
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


def _shown(call: WaveCall) -> str:
    return f"{call.name}({visible_json(call.arguments)})"
