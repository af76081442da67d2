"""Compares an input with its replay, in the order of events.

A step is one plan with its calls; a wave is the calls of one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from graph_agent.base.calls import canonical_arguments, is_delegation
from graph_agent.base.history.events import StoredEvent
from graph_agent.core.state.model_requests import ModelRequest, requests_of
from graph_agent.devtools.json_values import ABSENT, ValueDifference, shown_values, value_differences
from graph_agent.devtools.recording import RecordedCall, RecordedInput, RecordedStep
from graph_agent.session.trace import inputs_of


@dataclass(frozen=True, slots=True)
class PairedCalls:
    """Which calls of two waves correspond, by their positions in each."""

    equal: tuple[tuple[int, int], ...]
    """Calls of the same name with equal arguments: recorded position, new position."""
    changed: tuple[tuple[int, int], ...]
    """Calls of the same name with different arguments: recorded position, new position."""
    missing: tuple[int, ...]
    """Positions of the recorded calls without a new one."""
    added: tuple[int, ...]
    """Positions of the new calls without a recorded one."""


def pair_calls(recorded: Sequence[tuple[str, Any]], now: Sequence[tuple[str, Any]]) -> PairedCalls:
    """Pair the calls of two waves, each a list of `(name, arguments)`; their order does not matter.

    Calls of one name with different arguments are paired such that the pairs with the fewest differences come first.
    """
    keys = [(name, canonical_arguments(arguments)) for name, arguments in now]
    left, equal, rest = list(range(len(now))), list[tuple[int, int]](), list[int]()
    for at, (name, arguments) in enumerate(recorded):
        key = name, canonical_arguments(arguments)
        found = next((other for other in left if keys[other] == key), None)
        if found is None:
            rest.append(at)
        else:
            left.remove(found)
            equal.append((at, found))
    # The nearest pairs first, so that a small change is reported as one, not as two unrelated calls.
    distances = sorted(
        (sum(1 for _ in value_differences(recorded[at][1], now[other][1])), at, other)
        for at in rest
        for other in left
        if recorded[at][0] == now[other][0]
    )
    changed = list[tuple[int, int]]()
    for _, at, other in distances:
        if at in rest and other in left:
            rest.remove(at)
            left.remove(other)
            changed.append((at, other))
    return PairedCalls(tuple(equal), tuple(sorted(changed)), tuple(rest), tuple(left))


DifferenceKind = Literal[
    "request", "model", "approval", "call", "needs", "result", "truncation", "limit", "loop_detected", "steering",
    "answer", "status", "stop_reason",
]  # fmt: skip
"""What differs. `model` is a request for a reply that is not recorded, `request` the content of a request."""
_NOTICES: Mapping[DifferenceKind, tuple[str, ...]] = {
    "limit": ("reason", "limit"),
    "loop_detected": ("pattern", "count", "repeated"),
    "steering": ("content",),
}
"""Type of an event that is compared as a whole → its compared fields."""
_FAILURES = ("error", "unknown")
"""Statuses of a failed call; a tool that is marked as reading since the recording has `error` for `unknown`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place at which a replay differs from its recording."""

    input: int
    """Number of the input, from 1."""
    step: int
    """Number of the step; 0 for the input as a whole."""
    kind: DifferenceKind
    """What differs; `model` is a request for a reply that is not recorded."""
    name: str = ""
    """Name of the tool, or `delegate_to_<name>`; the purpose of a request. Empty for other kinds."""
    path: str = "$"
    """JSON path in what differs."""
    recorded: Any
    """The recorded value at the path; `ABSENT` if there is none."""
    now: Any
    """The new value at the path; `ABSENT` if there is none."""

    def __str__(self) -> str:
        place = f"input {self.input}, step {self.step}" if self.step else f"input {self.input}"
        return f"{place}, {self.what}"

    @property
    def what(self) -> str:
        """The difference in one line, without its place: `call weather $.city: recorded "Bergen", now "Oslo"`."""
        subject = f"{self.kind} {self.name}".rstrip()
        recorded, now = shown_values(self.recorded, self.now)
        return f"{subject} {self.path}: recorded {recorded}, now {now}"

    def as_json(self) -> dict[str, Any]:
        """Return the difference as plain JSON, with its sentence as `text`; `recorded` or `now` is left out if it
        does not exist."""
        found = {"input": self.input, "step": self.step, "kind": self.kind, "name": self.name, "path": self.path}
        values = {"recorded": self.recorded, "now": self.now}
        return {**found, **{name: value for name, value in values.items() if value is not ABSENT}, "text": str(self)}


Requests = Mapping[tuple[int, int, str], ModelRequest]
"""Number of the input, step and purpose → the last recorded request."""


def recorded_requests(events: Sequence[StoredEvent]) -> Requests:
    """Return the requests in the events of a session: number of the input, step and purpose → the last such request.

    The events are those since the session's beginning. Requests of delegates, and those that were not recorded but
    reconstructed, are left out.
    """
    numbers = [number for number, own in enumerate(inputs_of(events), 1) for _ in own]
    return {
        (numbers[each.seq], each.step, each.purpose): each
        for each in requests_of(events)
        if not (each.reconstructed or each.delegate)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class InputComparison:
    """Compares inputs with their replays, by the given rules."""

    requests: Requests
    """The recorded requests; empty to compare none."""
    ignores_prompt: bool = False
    """Whether the system prompt is expected to differ."""
    replaced_tools: frozenset[str] = frozenset()
    """Names of the tools whose definition is expected to differ."""

    def steps(
        self, recorded: RecordedInput, now: RecordedInput, requests: Requests, first: int, end: int | None
    ) -> Iterator[Difference]:
        """Yield the differences of steps, in order.

        Args:
            recorded: The recorded input.
            now: The replayed input.
            requests: The requests of the replay.
            first: The first step to compare.
            end: The step before which to end; None for all.
        """
        steps, others = ({step.number: step for step in each.steps} for each in (recorded, now))
        for number in sorted(steps.keys() | others.keys()):
            if number >= first and (end is None or number < end):
                empty = RecordedStep(number=number)
                step, other = steps.get(number, empty), others.get(number, empty)
                yield from _placed(recorded, number, self._requests(recorded, step, requests))
                yield from _placed(recorded, number, _step(step, other))

    def _requests(self, recorded: RecordedInput, step: RecordedStep, requests: Requests) -> Iterator[_Found]:
        """Yield the differences of a step's requests, one of each purpose, where both sides have recorded them.

        A step with a reply that a hook or a repair replaced is skipped.
        """
        if any(not reply.is_stored and not reply.error for reply in step.replies):
            return  # A hook or a repair asked again, with messages that are not recorded.
        for purpose in ("summary", "plan", "answer"):
            key = recorded.number, step.number, purpose
            if (one := self.requests.get(key)) is not None and (other := requests.get(key)) is not None:
                yield from _differing("request", purpose, self._shown(one), self._shown(other))

    def _shown(self, request: ModelRequest) -> dict[str, Any]:
        """Return what is compared of a request: `{"messages": […], "tools": {name: definition}, "options": {…}}`.

        System messages are empty if the prompt is expected to differ. Tools that are replaced, the definitions of
        delegates, and facts of the memory are left out.
        """
        messages = [dict(each) for each in request.messages if "recalled" not in each]
        if self.ignores_prompt:
            messages = [{"type": "system"} if each["type"] == "system" else each for each in messages]
        tools = {name: tool for tool in request.tools if (name := _tool_name(tool)) not in self.replaced_tools}
        # The description of a remote delegate comes from its agent card.
        tools = {name: {} if is_delegation(name) else tool for name, tool in tools.items()}
        return {"messages": messages, "tools": tools, "options": dict(request.options)}

    def end(self, recorded: RecordedInput, now: RecordedInput) -> Iterator[Difference]:
        """Yield the differences of answer, status and stop reason of an input."""
        yield from _placed(recorded, 0, _differing("answer", "", recorded.answer, now.answer))
        yield from _placed(recorded, 0, _differing("status", "", recorded.status.value, now.status.value))
        yield from _placed(recorded, 0, _differing("stop_reason", "", recorded.stop_reason, now.stop_reason))


_Found = tuple[DifferenceKind, str, ValueDifference]
"""What differs, the name of its tool or purpose, and the values."""


def _differing(kind: DifferenceKind, name: str, recorded: Any, now: Any) -> Iterator[_Found]:
    """Yield the differences of two values, as findings of a kind."""
    return ((kind, name, found) for found in value_differences(recorded, now))


def _placed(recorded: RecordedInput, step: int, found: Iterable[_Found]) -> Iterator[Difference]:
    """Convert findings to differences at a step of an input."""
    for kind, name, each in found:
        yield Difference(
            input=recorded.number, step=step, kind=kind, name=name, path=each.path, recorded=each.recorded, now=each.now
        )


def unfinished_wave(recorded: RecordedInput, now: RecordedInput) -> Iterator[Difference]:
    """Yield the differences of the newest step of a replay, of whose calls some have not started.

    Only calls with changed arguments, additional calls and missing approvals are reported.
    """
    number = max((step.number for step in now.steps), default=0)
    calls, others = ([call for step, call in each.calls if step == number] for each in (recorded, now))
    others = [call for call in others if call.started]
    held, asked = (_held(entry for entry in each.events if entry["step"] == number) for each in (recorded, now))
    held = [held[at] for at in pair_calls(held, asked).missing]
    equal = pair_calls(held, _named(others)).equal  # an approval of another call may still be requested
    yield from _placed(recorded, number, (_only(held[at], "approval", ABSENT) for at, _ in equal))
    paired = pair_calls(_named(calls), _named(others))
    wave = _calls(calls, others, PairedCalls((), paired.changed, (), paired.added))
    yield from _placed(recorded, number, wave)


def _step(recorded: RecordedStep, now: RecordedStep) -> Iterator[_Found]:
    """Yield the differences of one step: approvals, calls, results, limits, loop notices and steering.

    Calls are paired by name and arguments. A limit of the deadline is not compared.
    """
    held, asked = _held(recorded.events), _held(now.events)
    paired = pair_calls(held, asked)
    yield from (_only(held[at], "approval", ABSENT) for at in paired.missing)
    yield from (_only(ABSENT, "approval", asked[at]) for at in paired.added)
    paired = pair_calls(_named(recorded.calls), _named(now.calls))
    yield from _calls(recorded.calls, now.calls, paired)
    for kind, fields in _NOTICES.items():
        values = [
            [
                {name: entry.get(name) for name in fields}
                for entry in step.events
                if entry["type"] == kind and entry.get("reason") != "deadline"  # the time of a replay is another
            ]
            for step in (recorded, now)
        ]
        yield from _differing(kind, "", *values)


def _only(recorded: Any, kind: DifferenceKind, now: Any) -> _Found:
    """Return the difference of a call, as name and arguments, that only one side has; the other is `ABSENT`."""
    name = (now if recorded is ABSENT else recorded)[0]
    values = (each if each is ABSENT else dict(each[1]) for each in (recorded, now))
    return kind, name, ValueDifference("$", *values)


def _calls(recorded: Sequence[RecordedCall], now: Sequence[RecordedCall], paired: PairedCalls) -> Iterator[_Found]:
    """Yield the differences of the calls of a wave; `paired` is which of them correspond.

    Corresponding calls with equal arguments are compared by the calls that they need and by their results.
    """
    named, others = _named(recorded), _named(now)
    for at, other in paired.changed:
        yield from _differing("call", recorded[at].name, recorded[at].arguments, now[other].arguments)
    yield from (_only(named[at], "call", ABSENT) for at in paired.missing)
    yield from (_only(ABSENT, "call", others[at]) for at in paired.added)
    needs = _needs(recorded, dict(paired.equal)), _needs(now, {other: other for other in range(len(now))})
    for at, other in paired.equal:
        yield from _differing("needs", recorded[at].name, needs[0](at), needs[1](other))
        yield from _result(recorded[at], now[other])


def _needs(calls: Sequence[RecordedCall], new: Mapping[int, int]) -> Callable[[int], list[str]]:
    """Return a function from the position of a call to the calls that it needs, such as `["call 2"]`.

    A needed call is named by its position in the other wave, counted from 1; `new` is position → position there. One
    without a position there is `call 0`; calls of earlier waves are left out. The names are sorted.
    """
    at = {call.id: position for position, call in enumerate(calls)}

    def of(position: int) -> list[str]:
        """Return the calls that the call at a position needs, sorted; ids of no call in the wave are left out."""
        known = sorted(new.get(at[id_], -1) for id_ in calls[position].needs if id_ in at)
        return [f"call {each + 1}" for each in known]

    return of


def _result(recorded: RecordedCall, now: RecordedCall) -> Iterator[_Found]:
    """Yield the differences of the results of two corresponding calls: status, value and truncation.

    A result that only one has is a difference; two failures of a different status are none.
    """
    name, one, other = recorded.name, recorded.result, now.result
    if one is None or other is None:
        if one is not other:
            values = [ABSENT if each is None else each.value for each in (one, other)]
            yield "result", name, ValueDifference("$", *values)
        return
    if one.status != other.status and not (one.status in _FAILURES and other.status in _FAILURES):
        yield "result", name, ValueDifference("$", f"status {one.status}", f"status {other.status}")
    yield from _differing("result", name, one.value, other.value)
    yield from _differing("truncation", name, *(bool(each.event.get("truncated")) for each in (one, other)))


def _named(calls: Iterable[RecordedCall]) -> list[tuple[str, Any]]:
    """Return name and arguments of each call."""
    return [(call.name, call.arguments) for call in calls]


def _held(events: Iterable[StoredEvent]) -> list[tuple[str, Any]]:
    """Return name and arguments of each call of the agent's own that a person was asked to approve."""
    requests = [entry for entry in events if entry["type"] == "approval_request" and "delegate" not in entry]
    # A call is requested again while the decisions of others arrive.
    calls = {call["id"]: (call["name"], call["arguments"]) for entry in requests for call in entry["calls"]}
    return [*calls.values()]


def _tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool in a request, or its type if it has none."""
    return str(tool.get("function", tool).get("name", tool.get("type")))
