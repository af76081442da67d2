"""Checks the run of a case against its expectation."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import ValidationError

from graph_agent._internal.failure_log import exception_text
from graph_agent._internal.json_schema import SchemaCheck, compile_pattern
from graph_agent.agent_file.imports import load_attribute
from graph_agent.errors import SlowSchemaError
from graph_agent.evaluation.cases import Case, ExpectedAnswer, ExpectedCalls, Judge, Limits
from graph_agent.session.results import RunResult
from graph_agent.testing.calls import WaveCall, compare_calls, compare_values
from graph_agent.types import SessionStatus

_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that a run failed."""

    check: str
    """The field of the expectation, such as `answer.contains`; `run` if the run itself failed."""
    message: str
    """What was expected, and what the run had."""

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"


@dataclass(frozen=True, slots=True)
class Measures:
    """What a run took, over all turns."""

    steps: int = 0
    """Waves run."""
    tokens: int = 0
    """Tokens of requests and replies."""
    cost: float | None = None
    """Cost, in the currency of the price table; None without prices."""
    seconds: float = 0.0
    """Seconds from each input to its end."""


NO_MEASURES = Measures()


@dataclass(frozen=True, slots=True)
class Score:
    """A judge's score of an answer."""

    score: float
    """From 0 to 1."""
    reason: str
    """The judge's reason."""


Ask = Callable[[Judge, RunResult], Awaitable[Score]]
"""Asks a judge for the score of a run's last turn."""


async def check_run(
    case: Case, results: Sequence[RunResult], calls: Sequence[WaveCall], measures: Measures, ask: Ask, folder: Path
) -> list[Failure]:
    """Return the checks that a run failed, by the results of its turns, at least one, and all their calls.

    `ask` asks the judge of the case. The folder is searched first for functions.
    """
    last, expect = results[-1], case.expect
    found = [*_outcome(case, last)]
    if expect.calls is not None:
        found += _calls(expect.calls, calls)
    found += _limits(expect.limits, measures)
    if (answer := expect.answer) is not None:
        found += _answer(answer, last)
        if answer.python is not None:
            found += await _function(answer.python, last, folder)
        # A judge costs a model call, which a run that failed needs no more.
        if answer.judge is not None and not found:
            score = await ask(answer.judge, last)
            if score.score < answer.judge.threshold:
                message = f"score {score.score:g} is below {answer.judge.threshold:g}: {score.reason}"
                found.append(Failure("answer.judge", message))
    return found


def _outcome(case: Case, last: RunResult) -> Iterator[Failure]:
    expect = case.expect
    if last.interrupts:
        waiting = ", ".join(dict.fromkeys(call["name"] for call in last.pending))
        yield Failure("run", f"it waits for a person at {waiting or last.waiting}; give the decision in 'approvals'")
        return
    if expect.status is not None and last.status != expect.status:
        yield Failure("status", f"expected {expect.status.value}, got {_status(last)}")
    elif expect.status is None and last.status == SessionStatus.FAILED:
        yield Failure("status", f"the run failed: {last.error or last.answer}")
    if expect.stop_reason not in (None, last.stop_reason):
        yield Failure("stop_reason", f"expected {expect.stop_reason}, got {last.stop_reason}")


def _status(last: RunResult) -> str:
    return f"{last.status.value}: {last.error}" if last.error else last.status.value


def _calls(expected: ExpectedCalls, calls: Sequence[WaveCall]) -> Iterator[Failure]:
    if (difference := compare_calls(expected.calls, calls, expected.order)) is not None:
        yield Failure("calls", str(difference))


def _limits(limits: Limits, measures: Measures) -> Iterator[Failure]:
    for name in Limits.model_fields:
        most, took = getattr(limits, name), getattr(measures, name)
        if most is not None and took is None:
            yield Failure(f"limits.{name}", "the run has no cost; give the agent's config a price table")
        elif most is not None and took > most:
            yield Failure(f"limits.{name}", f"expected {most:g} at most, took {took:g}")


def _answer(expected: ExpectedAnswer, last: RunResult) -> Iterator[Failure]:
    text = last.answer
    if isinstance(expected.equals, str) and text != expected.equals:
        yield Failure("answer.equals", f"expected {_shown(expected.equals)}, got {_shown(text)}")
    if expected.equals is not None and not isinstance(expected.equals, str):
        found = compare_values(expected.equals, _value(last))
        if found is not None:
            yield Failure("answer.equals", f"{found[0]}: expected {_shown(found[1])}, got {_shown(found[2])}")
    for part in expected.texts:
        if part not in text:
            yield Failure("answer.contains", f"{_shown(part)} is not in {_shown(text)}")
    if expected.regex is not None and not compile_pattern(expected.regex).search(text, timeout=1):
        yield Failure("answer.regex", f"{expected.regex!r} is not found in {_shown(text)}")
    if expected.json_schema is not None:
        try:
            SchemaCheck(expected.json_schema, "json_schema")(_value(last))
        except (ValidationError, SlowSchemaError) as error:
            yield Failure("answer.json_schema", getattr(error, "message", str(error)))


def _value(last: RunResult) -> Any:
    """Return the structured response as JSON, or the JSON in the answer; the answer's text if it is no JSON."""
    given = last.structured_response
    if given is not None:
        return given.model_dump(mode="json") if hasattr(given, "model_dump") else given
    try:
        return json.loads(last.answer)
    except ValueError:
        return last.answer


async def _function(name: str, last: RunResult, folder: Path) -> list[Failure]:
    function = load_attribute(name, folder)
    try:
        verdict = function(last)
        if inspect.isawaitable(verdict):
            verdict = await verdict
    except AssertionError as error:
        verdict = str(error) or False
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything; the report shows it
        verdict = f"it raised {exception_text(error)}"
    if verdict is None or verdict is True or (not isinstance(verdict, str) and verdict):
        return []
    return [Failure("answer.python", f"{name}: {verdict or 'it returned ' + repr(verdict)}")]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
