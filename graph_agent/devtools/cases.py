"""Defines the cases of an evaluation, reads and writes their file, and checks the runs of a case.

```yaml
agent: agent.yaml
cases:
  - name: weather
    input: Do I need an umbrella in Bergen?
    expect:
      calls: [{name: weather, arguments: {city: Bergen}}]
      answer: {contains: umbrella}
```
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from graph_agent.agent_file.imports import load_attribute
from graph_agent.base._internal.failure_log import exception_text
from graph_agent.base._internal.json_schema import SchemaCheck, check_pattern, compile_pattern
from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import brief_repr
from graph_agent.base._internal.validation_text import describe_fields, explain
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.errors import ConfigError, GraphAgentError
from graph_agent.base.history.events import ResultStatus
from graph_agent.base.types import SessionStatus, StopReason
from graph_agent.devtools.calls import CallInWave, CallOrder, compare_calls
from graph_agent.devtools.json_values import check_matchers, value_differences
from graph_agent.session.results import RunResult

Turn = str | list[dict[str, Any]]
"""One input of the user: a text, or LangChain content blocks."""


class _Part(BaseModel):
    """A part of a file of cases: unknown keys are errors, and values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=describe_fields)


class ExpectedCall(_Part):
    """A call that a run must make. In a file, its name alone is enough."""

    name: str = Field(min_length=1)
    """Name of the tool, or `delegate_to_<name>`."""
    arguments: dict[str, Any] | None = None
    """The arguments, of which a value may be a matcher; None for any arguments."""
    match: Literal["exact", "partial"] = "exact"
    """Whether the call may have further arguments: `partial` permits them."""
    status: ResultStatus | None = None
    """How the call ended; None for any status."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        """Accept the name of a call in place of a mapping."""
        return {"name": given} if isinstance(given, str) else given

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, arguments: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the arguments, or None, unchanged; raise `ValueError` for an invalid matcher in them."""
        check_matchers(arguments)
        return arguments


# A discriminator of the union, so that an error names the faulty field of the given form, and not those of both forms.
def _kind(given: Any) -> str:
    """Return whether a value is a `wave` (a list of calls) or a `call`."""
    return "wave" if isinstance(given, list | tuple) else "call"


class ExpectedCalls(_Part):
    """The calls that a run must make. In a file, the list alone is enough."""

    calls: list[
        Annotated[
            Annotated[ExpectedCall, Tag("call")] | Annotated[list[ExpectedCall], Tag("wave")], Discriminator(_kind)
        ]
    ]
    """The calls in their order. A list within it is one whole wave; then each call outside of a list is one, too."""
    order: CallOrder = "waves"
    """`waves`: in this order, but free within a wave of the run; `exact`: in the order planned; `any`: all of them, in
    any order; `subset`: at least these, in any order."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        """Accept the list of calls in place of a mapping."""
        return {"calls": given} if isinstance(given, list) else given


class Judge(_Part):
    """A model that scores the answer."""

    rubric: str = Field(min_length=1)
    """What a good answer is, in words."""
    model: str | list[str] | None = None
    """The model, as in the agent file: `provider:name` or `module:factory`; None for the agent's model."""
    threshold: float = Field(default=0.7, ge=0, le=1)
    """Lowest score that passes."""


class ExpectedAnswer(_Part):
    """Checks of the last answer; each one given must pass. In a file, a text alone is `contains`."""

    equals: Any = None
    """The whole answer: a text, or the JSON value of the structured response or of the answer's text."""
    contains: str | list[str] = []
    """Texts that the answer contains."""
    regex: str | None = None
    """A pattern found in the answer."""
    json_schema: dict[str, Any] | None = None
    """A schema of the structured response, or of the JSON in the answer's text."""
    python: str | None = None
    """A function `module:function` of the last turn's `RunResult`. It returns whether the run passes, or None if so,
    or a text that explains why not; an `AssertionError` explains it, too."""
    judge: Judge | None = None
    """A model that scores the answer."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        """Accept a text in place of a mapping, as `contains`."""
        return {"contains": given} if isinstance(given, str) else given

    @property
    def texts(self) -> list[str]:
        """The texts of `contains`, as a list."""
        return [self.contains] if isinstance(self.contains, str) else self.contains

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, pattern: str | None) -> str | None:
        """Return the pattern, or None, unchanged; raise `ValueError` if it is invalid, too large, or has the flag x.

        The pattern is not compiled.
        """
        try:
            if pattern is not None:
                check_pattern(pattern)
        except (OverflowError, RecursionError) as error:
            raise ValueError(f"the pattern cannot be used: {error}") from None
        return pattern

    @field_validator("json_schema")
    @classmethod
    def _check_schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the JSON schema, or None, unchanged; raise `ValueError` if it is invalid."""
        if schema is not None:
            try:
                SchemaCheck(schema, "json_schema")
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return schema


class Limits(_Part):
    """The most that a run may take, over all turns."""

    steps: int | None = Field(default=None, ge=0)
    """Waves run."""
    tokens: int | None = Field(default=None, ge=0)
    """Tokens of requests and replies."""
    cost: float | None = Field(default=None, ge=0)
    """Cost, in the currency of the agent's price table, without which no cost passes."""
    seconds: float | None = Field(default=None, ge=0)
    """Seconds from each input to its end."""


class Expectation(_Part):
    """What a run must fulfil."""

    calls: ExpectedCalls | None = None
    """Calls of all turns; None for any calls, an empty list for none."""
    answer: ExpectedAnswer | None = None
    """Checks of the last answer."""
    status: SessionStatus | None = None
    """Status after the run; None for any but `FAILED`."""
    stop_reason: StopReason | None = None
    """Why the last turn stopped; None for any reason."""
    limits: Limits = Limits()
    """The most that the run may take."""


class Approval(_Part):
    """The decision on each call of one tool that waits for approval; exactly one field is given.

    In a file, `approve` and `reject` alone are enough.
    """

    approve: Literal[True] | None = None
    """Run the call as planned."""
    reject: str | None = None
    """Do not run it; the reason, for the model, which may be empty."""
    edit: dict[str, Any] | None = None
    """Run it with these arguments."""
    respond: str | None = None
    """Do not run it; this text is its result."""

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, given: Any) -> Any:
        """Return the mapping for the words `approve` and `reject`, a mapping itself; raise `ValueError` for anything
        else.
        """
        words: dict[Any, Any] = {"approve": {"approve": True}, "reject": {"reject": ""}}
        if not isinstance(given, dict) and given not in words:
            raise ValueError("write approve, reject, {reject: REASON}, {edit: {arguments}} or {respond: RESULT}")
        return given if isinstance(given, dict) else words[given]

    @model_validator(mode="after")
    def _check_one(self) -> Approval:
        """Raise `ValueError` unless exactly one field is given."""
        if len(self.model_fields_set) != 1:
            raise ValueError("give one of approve, reject, edit and respond")
        return self


class Case(_Part):
    """One case: what a session receives, and what its run must fulfil."""

    name: str = Field(min_length=1)
    """A name, unique in its file."""
    session: str | None = None
    """Id of the session that the case was taken from, whose side-effecting calls run only with `--allow-writes`; None
    for a case written by hand."""
    called: list[str] | None = None
    """Names of the tools that this session called. The case needs `--allow-writes` only if one of them has side
    effects; None if they are unknown, so that any side-effecting tool of the agent counts."""
    input: Turn | list[Turn]
    """The user's input: a text, a list of content blocks, or a list of such turns, run in order in one session."""
    approvals: dict[str, Approval] = {}
    """Tool → decision on its calls that wait for approval; `"*"` counts for every other tool."""
    context: dict[str, Any] = {}
    """Values of the run's context, such as `max_steps`."""
    state: dict[str, Any] = {}
    """Values of own state fields, which the first turn sets."""
    metadata: dict[str, Any] = {}
    """Values for reports and for other programs."""
    expect: Expectation = Expectation()
    """What the run must fulfil."""

    @field_validator("input", mode="before")
    @classmethod
    def _check_input(cls, given: Any) -> Any:
        """Return the input unchanged; raise `ValueError` unless it is, or is a list of, texts or content that is not
        empty.
        """
        turns = given if isinstance(given, list) else [given]
        if not turns or not all(isinstance(turn, str | list | dict) and turn for turn in turns):
            raise ValueError("give a text, content blocks such as [{type: text, text: Hello}], or a list of these")
        return given

    @property
    def turns(self) -> list[Turn]:
        """The inputs of the user, in order: a text, or a list of content blocks, is one turn; any other list has
        several.
        """
        if isinstance(self.input, str) or all(isinstance(each, dict) for each in self.input):
            return [self.input]  # type: ignore[list-item]  # a list of dicts only is one turn
        return self.input  # type: ignore[return-value]  # and any other list is one of turns


class CaseFile(_Part):
    """The content of a file of cases."""

    agent: str | None = None
    """The agent file, relative to this file; `--agent` replaces it."""
    cases: list[Case] = Field(min_length=1)
    """The cases."""

    @field_validator("cases")
    @classmethod
    def _check_names(cls, cases: list[Case]) -> list[Case]:
        """Return the cases unchanged; raise `ValueError` if two of them have the same name."""
        names = [case.name for case in cases]
        # A report, and the id of a session, name a case by its name alone.
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two cases have the name {repeated[0]!r}; give each its own")
        return cases


def load_cases(path: str | Path) -> CaseFile:
    """Read and validate a file of cases in this package's own format.

    Raises `ConfigError` if the file is missing or invalid; each line of the error names the file, the line and the
    field.
    """
    text = read_case_file(Path(path))
    content = parse_yaml(text, f"Cases {path}")
    if not isinstance(content, dict):
        raise ConfigError(f"Cases {path}: expected the key 'cases' at the top, got {content!r}.")
    return parse_cases(content, f"Cases {path}", text)


def read_case_file(path: Path) -> str:
    """Return the text of a file of cases (UTF-8); raise `ConfigError` if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"Cases {path}: it is not there; name a file of cases.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cases {path}: {error}; name a file of cases.") from None


def parse_cases(content: Mapping[str, Any], where: str, text: str = "") -> CaseFile:
    """Validate the content of a file of cases; raise `ConfigError` if a key or value is invalid.

    Args:
        content: The content, as plain values.
        where: Name of the file, with which each line of the error begins.
        text: The YAML that the content comes from, for the line numbers in errors; empty for no line numbers.
    """
    try:
        return CaseFile.model_validate(content)
    except ValidationError as error:
        # Parsed a second time, because the parsed values have no positions; only a faulty file pays for it.
        root = yaml.compose(text, Loader=yaml.SafeLoader) if text else None
        lines = explain(error, where, CaseFile).splitlines()
        places = [_line(root, fault["loc"]) for fault in error.errors()]
        # One line per fault, unless a given value has line ends.
        located = zip(lines, places if len(places) == len(lines) else [""] * len(lines), strict=True)
        raise ConfigError("\n".join(line.replace(where, where + place, 1) for line, place in located)) from None


def _line(node: Any, path: Sequence[int | str]) -> str:
    """Return the line of a value for an error message, such as `, line 7`; empty if `node`, the parsed YAML, is None.

    `path` are the keys and indexes from the root to the value. If the value does not exist, it is the line of the
    innermost one above it.
    """
    if node is None:
        return ""
    line = node.start_mark.line
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if found is not None:
                line, node = found[0].start_mark.line, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
    return f", line {line + 1}"


def dump_cases(file: CaseFile) -> str:
    """Return a file of cases as YAML, without the fields that have their default.

    Decisions and calls are written in their short forms where possible (see `_shortened`).
    """
    content = file.model_dump(mode="json", exclude_defaults=True)
    for case in content["cases"]:
        # A person edits the file, so it is written as one would write it by hand.
        case.update(_shortened(case))
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def _shortened(case: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a case that have a short form, in this form, as `approvals` and `expect`.

    Decisions `approve` and `reject` become words, and calls without further settings a list. A field that is absent
    from the case, or has no short form, is left out.
    """
    found: dict[str, Any] = {}
    if approvals := case.get("approvals"):
        found["approvals"] = {
            tool: "approve" if given.get("approve") else "reject" if given == {"reject": ""} else given
            for tool, given in approvals.items()
        }
    calls = case.get("expect", {}).get("calls")
    if calls is not None and set(calls) == {"calls"}:
        found["expect"] = {**case["expect"], "calls": calls["calls"]}
    return found


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check of a case that its run did not pass."""

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
    """A judge's score of an answer; a judge is a model that scores by a rubric."""

    score: float
    """From 0 to 1."""
    reason: str
    """The judge's reason."""


AskJudge = Callable[[Judge, RunResult], Awaitable[Score]]
"""Asks a judge for the score of the last turn of a run."""


async def check_run(
    case: Case,
    results: Sequence[RunResult],
    calls: Sequence[CallInWave],
    measures: Measures,
    ask: AskJudge,
    folder: Path,
) -> list[FailedCheck]:
    """Return the checks that a run did not pass; empty if it passed.

    They are in this order: the outcome, the calls, the limits, the answer, the check in Python, the judge.

    Args:
        case: The case with its expectation.
        results: The results of the turns, at least one; answer, status and interrupts are those of the last.
        calls: The calls of all turns.
        measures: What the run took.
        ask: Asks the judge of the case; called only if every other check has passed. An exception is a failure.
        folder: Folder that is searched first for the module of a check in Python.

    Raises:
        ConfigError: If the function of a check in Python cannot be imported.
    """
    last, expect = results[-1], case.expect
    found = [*_outcome(case, last)]
    wanted = expect.calls
    if wanted is not None and (difference := compare_calls(wanted.calls, calls, wanted.order)) is not None:
        found.append(FailedCheck("calls", str(difference)))
    found += _limits(expect.limits, measures)
    if (answer := expect.answer) is not None:
        found += _answer(answer, last)
        if answer.python is not None:
            found += await _function(answer.python, last, folder)
        # A judge costs a model call, which a run that failed needs no more.
        if answer.judge is not None and not found:
            try:
                score = await ask(answer.judge, last)
            except Exception as error:  # noqa: BLE001 - a provider may raise anything; the other trials run on
                found.append(FailedCheck("answer.judge", f"the judge gave no score: {masked_error(error)}"))
            else:
                if score.score < answer.judge.threshold:
                    message = f"score {score.score:g} is below {answer.judge.threshold:g}: {score.reason}"
                    found.append(FailedCheck("answer.judge", message))
    return found


def masked_error(error: Exception) -> str:
    """Return the text of an exception of a run for a report, without secrets."""
    return mask_named_secrets(str(error) if isinstance(error, GraphAgentError) else exception_text(error))


def _outcome(case: Case, last: RunResult) -> Iterator[FailedCheck]:
    """Yield a failure if the run waits for a person, or ended with another status or reason than expected.

    A waiting run has no other failure. Without an expected status, only a failed run is one. `last` is the result of
    the last input of the case.
    """
    expect = case.expect
    if last.interrupts:
        waiting = ", ".join(dict.fromkeys(call["name"] for call in last.pending))
        yield FailedCheck(
            "run", f"it waits for a person at {waiting or last.waiting}; give the decision in 'approvals'"
        )
        return
    if expect.status is not None and last.status != expect.status:
        got = f"{last.status.value}: {last.error}" if last.error else last.status.value
        yield FailedCheck("status", f"expected {expect.status.value}, got {got}")
    elif expect.status is None and last.status == SessionStatus.FAILED:
        yield FailedCheck("status", f"the run failed: {last.error or last.answer}")
    if expect.stop_reason not in (None, last.stop_reason):
        yield FailedCheck("stop_reason", f"expected {expect.stop_reason}, got {last.stop_reason}")


def _limits(limits: Limits, measures: Measures) -> Iterator[FailedCheck]:
    """Yield a failure for each limit that the run exceeded, and for a limit of the cost if the run has no cost."""
    for name in Limits.model_fields:
        most, took = getattr(limits, name), getattr(measures, name)
        if most is not None and took is None:
            yield FailedCheck(f"limits.{name}", "the run has no cost; give the agent's config a price table")
        elif most is not None and took > most:
            yield FailedCheck(f"limits.{name}", f"expected {most:g} at most, took {took:g}")


def _answer(expected: ExpectedAnswer, last: RunResult) -> Iterator[FailedCheck]:
    """Yield a failure for each check of the answer that is not met, except those in Python and by a judge.

    An expected value that is no text is compared with the JSON of the answer, matchers included; its first difference
    counts. A search for a pattern that takes more than a second is a failure.
    """
    text = last.answer
    if isinstance(expected.equals, str) and text != expected.equals:
        yield FailedCheck("answer.equals", f"expected {brief_repr(expected.equals)}, got {brief_repr(text)}")
    if expected.equals is not None and not isinstance(expected.equals, str):
        for found in islice(value_differences(expected.equals, _value(last), matches=True), 1):
            values = f"expected {brief_repr(found.recorded)}, got {brief_repr(found.now)}"
            yield FailedCheck("answer.equals", f"{found.path}: {values}")
    for part in expected.texts:
        if part not in text:
            yield FailedCheck("answer.contains", f"{brief_repr(part)} is not in {brief_repr(text)}")
    # A pattern may need exponential time for some texts, and a check must not stop the evaluation.
    try:
        if expected.regex is not None and not compile_pattern(expected.regex).search(text, timeout=1):
            yield FailedCheck("answer.regex", f"{expected.regex!r} is not found in {brief_repr(text)}")
    except TimeoutError:
        yield FailedCheck("answer.regex", f"the search for {expected.regex!r} in {brief_repr(text)} took over a second")
    schema = SchemaCheck(expected.json_schema, "json_schema") if expected.json_schema is not None else None
    if schema is not None and (why := schema.misfit(_value(last))) is not None:
        yield FailedCheck("answer.json_schema", why)


def _value(last: RunResult) -> Any:
    """Return the structured response of a result as JSON, or the JSON in the answer; the answer's text if it is not
    JSON.
    """
    given = last.structured_response
    if given is not None:
        return given.model_dump(mode="json") if hasattr(given, "model_dump") else given
    try:
        return json.loads(last.answer)
    except ValueError:
        return last.answer


async def _function(name: str, last: RunResult, folder: Path) -> list[FailedCheck]:
    """Call the function of a check in Python with the last result; return its failure in a list, empty if it passes.

    It passes by returning None, True or another true value that is no text; a text is the reason of a failure. An
    exception of the function is a failure, too. Raises `ConfigError` if it cannot be imported.
    """
    # Outside of `try`: a function that does not exist is a fault of the file, not of the run.
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
    return [FailedCheck("answer.python", f"{name}: {verdict or 'it returned ' + repr(verdict)}")]
