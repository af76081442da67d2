"""Creates events of calls and their results with their values, records progress, and queries the newest wave.

A wave is the calls of one plan, which run in parallel. A call of a structured plan has two ids: a stored `id`, unique
in the session, and the model's own `plan_id`, which other calls of the plan refer to.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AnyMessage, ToolMessage
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from graph_agent.base._internal.text import clean, decode, text_of, to_json_safe
from graph_agent.base.calls import call_ids, delegate_name, delegation_name, is_delegation
from graph_agent.base.history.events import SUCCESSES, ResultStatus, StoredEvent, event
from graph_agent.base.types import Call, plan_id_of

NEVER_STARTED = "Not run: the run was interrupted while this call waited for others."
"""Result of a call that waited for others when its run was interrupted."""
READING = "The run was interrupted before this call had finished. It only reads, so nothing was changed."
"""Result of a call that only reads and was interrupted."""
UNDECIDED = "Not run: the run was interrupted while this call waited for a person's approval."
"""Result of a call on which no person decided before its run was interrupted."""
NOT_STARTED = "Not run: the run was interrupted before this call had started."
"""Result of a call that had not started when its run was interrupted."""
UNKNOWN_OUTCOME = (
    "The run was interrupted before this call's result was recorded. It is not known whether the call ran or took "
    "effect; check before repeating it."
)
"""Result of a call that may have run, and may have taken effect, before its run was interrupted."""
SETTLED = frozenset({NEVER_STARTED, READING, UNDECIDED, NOT_STARTED, UNKNOWN_OUTCOME})
"""Texts of the results that new input gives to the calls which an earlier, interrupted input left without a result."""

_CALLS = ("tool_call", "delegation_request")
"""Types of the events that announce a call."""
_ANSWERS = ("tool_result", "delegation_response")
"""Types of the events that hold the result of a call."""
CallOutcome = Literal["finished", "failed", "unknown", "skipped"]
"""How a call ended, in four classes for a report to the user."""
OUTCOMES: dict[ResultStatus, CallOutcome] = {
    "success": "finished",
    "error": "failed",
    "unknown": "unknown",
    "invalid": "skipped",
    "skipped": "skipped",
    "denied": "skipped",
    "answered": "finished",
}
"""Result status → outcome of the call."""


class Handoff(TypedDict):
    """A command of a tool to the parent graph, in plain types so that checkpoints can hold it."""

    goto: list[Any]
    """Names of nodes; a `Send` is stored as a pair of its node and its argument."""
    update: list[tuple[str, Any]]
    """Pairs of field and value, written to the parent's state."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call, run or skipped, before it is truncated for the model."""

    content: str | list[Any]
    """The output: text, or LangChain content blocks."""
    status: ResultStatus = "success"
    """How the call ended; see `ResultStatus`."""
    artifact: Any = field(default=None, kw_only=True)
    """Plain JSON stored with the message in addition to its content; hidden from the model. None if there is none."""
    stored: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Fields by which the call's event stores the result's value: `encoding` or `value`; empty if the content is the
    value."""
    raised: BaseException | None = field(default=None, kw_only=True)
    """The exception that `content` reports; None if there is none, or if middleware must not get it."""
    writes: tuple[tuple[str, Any], ...] = field(default=(), kw_only=True)
    """Pairs of field and value, written to the agent's own state fields."""
    messages: tuple[AnyMessage, ...] = field(default=(), kw_only=True)
    """Messages to append to the history after the results of the wave."""
    handoff: Handoff | None = field(default=None, kw_only=True)
    """A command to the parent graph; None if there is none."""


def fault_result(call: Call) -> CallResult:
    """Return the result of a call with a `fault` (the reason why it cannot run), which is the content.

    The status is `denied` if a person or middleware refused the call, `skipped` if a limit or an abort did, else
    `invalid`.
    """
    if (by := call.get("denied_by")) is not None:
        return CallResult(call["fault"], "denied", stored={"decided_by": by})
    return CallResult(call["fault"], "skipped" if "skipped" in call else "invalid")


def announce(
    calls: Sequence[Call], wave: Sequence[StoredEvent], step: int, write: Callable[[Any], None]
) -> list[StoredEvent]:
    """Return the events that announce calls, and write a progress record for each call that runs.

    A call is left out if the wave already has an event of it with the same name and arguments, as after a resume. A
    call with a `fault` gets an event that states this, and no progress record.

    Args:
        calls: Calls that run in the next superstep.
        wave: Events since the newest plan.
        step: Number of the plan.
        write: Writes an object to the custom stream.
    """
    known = {entry["id"]: call for entry in wave if (call := call_of(entry)) is not None}
    events: list[StoredEvent] = []
    for call in calls:
        made = call_event(call, step)
        # A person may have edited the call since its event.
        if known.get(call["id"]) != call_of(made):
            if "refused" not in made:
                write(progress_of(call, step))
            events.append(made)
    return events


def answer_event(call: Call, message: ToolMessage, step: int, decided_by: str = "user") -> StoredEvent:
    """Return the result event of a call that did not run, because a person or a hook supplied the result.

    The status is `denied` if the message is an error, else `answered`.

    Args:
        message: The supplied result.
        step: Number of the plan.
        decided_by: Name of the person or middleware that supplied it; `user` if no name is known.
    """
    status = "denied" if message.status == "error" else "answered"
    recorded = result_event(call["id"], call["name"], status, to_json_safe(message.content), step)
    return {**recorded, "decided_by": decided_by}


def call_event(call: Call, step: int) -> StoredEvent:
    """Return the `tool_call` or `delegation_request` event of a call.

    For a call with a `fault` (why it cannot run), the field `refused` has the status of its result. `plan_id`,
    `origins` and `tainted` are included if the call has them. Of the arguments of a delegation, only the `task` is
    included, as text.
    """
    refused: dict[str, Any] = {"refused": fault_result(call).status} if "fault" in call else {}
    ids: dict[str, Any] = {"id": call["id"]}
    if "plan_id" in call:
        ids["plan_id"] = call["plan_id"]
    if "origins" in call:
        # Few agents trace origins.
        refused = {**refused, **{name: call[name] for name in ("origins", "tainted") if name in call}}
    if is_delegation(call["name"]):
        target, task = delegate_name(call["name"]), str(call["arguments"].get("task", ""))
        return event("delegation_request", step, **ids, target=target, task=task, **refused)
    return event("tool_call", step, **ids, name=call["name"], arguments=call["arguments"], **refused)


def call_of(entry: StoredEvent) -> Call | None:
    """Return the call that an event of type `tool_call` or `delegation_request` announces; None for any other event."""
    if entry["type"] == "tool_call":
        return {"id": entry["id"], "name": entry["name"], "arguments": entry["arguments"]}
    if entry["type"] == "delegation_request":
        return {"id": entry["id"], "name": delegation_name(entry["target"]), "arguments": {"task": entry["task"]}}
    return None


def call_name(entry: StoredEvent) -> str | None:
    """Return the name of the call that an event announces or answers, `delegate_to_<name>` for a delegation.

    None for events of other types.
    """
    if entry["type"] in ("tool_call", "tool_result"):
        return str(entry["name"])
    if entry["type"] in ("delegation_request", "delegation_response"):
        return delegation_name(str(entry["target"]))
    return None


def result_event(id_: str, name: str, status: str, content: Any, step: int, *, truncated: bool = False) -> StoredEvent:
    """Return the `tool_result` or `delegation_response` event of a call.

    Args:
        id_: Id of the call.
        name: Name of the call, `delegate_to_<name>` for a delegation.
        status: A `ResultStatus`.
        content: The whole output, text or content blocks.
        step: Number of the plan.
        truncated: Whether the model sees only a part; not recorded for a delegation.
    """
    if is_delegation(name):
        target = delegate_name(name)
        return event("delegation_response", step, id=id_, target=target, status=status, content=content)
    return event("tool_result", step, id=id_, name=name, status=status, content=content, truncated=truncated)


def progress_of(call: Call, step: int) -> dict[str, Any]:
    """Return the record that the custom stream gets when a call starts.

    `{"type": "progress", "step": 1, "action": "tool_call", "target": "search"}`; `action` is `delegate` for a
    delegation. Other programs rely on exactly these keys.
    """
    if is_delegation(call["name"]):
        target = delegate_name(call["name"])
        return {"type": "progress", "step": step, "action": "delegate", "target": target}
    return {"type": "progress", "step": step, "action": "tool_call", "target": call["name"]}


def approval_progress(name: str, step: int) -> dict[str, Any]:
    """Return the record that the custom stream gets when a call waits for a person: that of `progress_of` with the
    action `approval`."""
    return {"type": "progress", "step": step, "action": "approval", "target": delegate_name(name)}


_PROGRESS = {"type", "step", "action", "target"}
"""The keys of a progress record."""


def is_progress(payload: Any) -> bool:
    """Whether an object of the custom stream is a progress record of this package: `type` `progress`, `step`, `action`,
    `target`.

    A tool may write any object to that stream.
    """
    return (
        isinstance(payload, dict)
        and payload.keys() == _PROGRESS
        and payload["type"] == "progress"
        and isinstance(payload["step"], int)
        and all(isinstance(payload[key], str) for key in ("action", "target"))
    )


def since_plan(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the newest plan's event and all later events; empty if the newest input has no plan yet."""
    for index in range(len(events) - 1, -1, -1):
        # A plan before it belongs to an earlier input.
        if events[index]["type"] == "user_message":
            break
        if events[index]["type"] == "plan":
            return list(events[index:])
    return []


def is_structured(wave: Sequence[StoredEvent]) -> bool:
    """Whether arguments of a wave's calls may contain references to results: only if structured planning made its plan.

    Args:
        wave: The wave's events, beginning with its plan; False for none.
    """
    return bool(wave) and "planner" in wave[0]


def plan_ids(events: Iterable[StoredEvent]) -> dict[str, str]:
    """Return id → plan id of the calls planned in some events; the same id twice for a call without a plan id."""
    return {call["id"]: plan_id_of(call) for entry in events if entry["type"] == "plan" for call in entry["calls"]}


def results_of_wave(events: Sequence[StoredEvent]) -> dict[str, Any]:
    """Return the successful results of the newest wave as plain JSON, by plan id.

    `RunResult.results` has these values. Content blocks that include other types than text are reduced to their text.
    Failed, skipped and denied calls are left out.
    """
    names = plan_ids(events)
    answers = [each for each in _answers(events, "plan") if each["status"] in SUCCESSES]
    return {_name_of(each, names): _value(each) for each in answers}


def _name_of(answer: StoredEvent, names: Mapping[str, str]) -> str:
    """Return the plan id of the call that an event answers; the id itself if no plan has the call."""
    # A person may have added the call to the plan.
    id_ = str(answer["id"])
    return names.get(id_, id_)


@dataclass
class _Calls:
    """The calls found in some events, with the newest result for each plan id (the id that the model gave the call)."""

    names: MutableMapping[str, str] = field(default_factory=dict)
    """Id of each call → plan id of the call."""
    ended: MutableMapping[str, None] = field(default_factory=dict)
    """Plan ids of the calls of earlier inputs; a mapping used as a set."""
    newest: dict[str, tuple[str, StoredEvent | None]] = field(default_factory=dict)
    """Plan id → id of the newest input's newest call with it, and the event of that call's result (None until the call
    ends)."""

    def add(self, events: Iterable[StoredEvent]) -> None:
        """Read further events, which must follow those read before.

        A user message or a first plan ends the input: its calls become earlier ones. Of calls with the same plan id,
        the newest counts, with its result event.
        """
        for entry in events:
            type_ = entry["type"]
            if type_ == "user_message" or (type_ == "plan" and entry["step"] <= 1):
                self.end_input()
            if type_ == "plan":
                for call in entry["calls"]:
                    id_ = call["id"]
                    name = self.names[id_] = plan_id_of(call)
                    self.newest[name] = id_, None
            elif type_ in _CALLS or type_ in _ANSWERS:
                id_ = entry["id"]
                # A person may have added the call to the plan.
                name = self.names.setdefault(id_, id_)
                if self.newest.setdefault(name, (id_, None))[0] == id_ and type_ in _ANSWERS:
                    self.newest[name] = id_, entry

    def end_input(self) -> None:
        """Turn the newest input's calls into calls of an earlier input."""
        self.ended.update(dict.fromkeys(self.newest))
        self.newest = {}


class EarlierCalls:
    """The ids of a session's calls: those that a new plan must not use, and those that it may refer to.

    Stored ids are taken in the whole session; plan ids (the model's own) may be used again in another input. One object
    serves a run, so that each event and message is read once, and none for plans without calls.
    """

    def __init__(self) -> None:
        self._events: Sequence[StoredEvent] = ()
        self._new: Sequence[StoredEvent] = ()
        self._begun = False
        self._read: tuple[_Calls, int] | None = None
        """The calls in the stored events that were read, and the number of these events; None before a query."""
        self._now: _Calls | None = None
        self._ids: dict[str, str] = {}
        self._messages = 0
        self._last: AnyMessage | None = None

    def follow(self, stored: Sequence[StoredEvent], new: Sequence[StoredEvent], *, begun: bool) -> None:
        """Set the events of the session up to the next plan; they are read at the first query.

        Args:
            stored: The stored events, oldest first.
            new: Events that the running superstep has added.
            begun: Whether the newest input has a plan already. If False, all calls in the events belong to earlier
                inputs, even if no user message separates them from the new input.
        """
        self._events, self._new, self._begun, self._now = stored, [*new], begun, None

    @property
    def _calls(self) -> _Calls:
        """The calls in the events set by `follow`, read now if they were not."""
        if self._now is None:
            stored = self._events
            # With fewer stored events, the session was continued from an earlier checkpoint.
            if self._read is None or len(stored) < self._read[1]:
                self._read = _Calls(), 0
            known, length = self._read
            known.add(stored[length:])
            self._read = known, len(stored)
            self._now = known
            if self._new or not self._begun:
                # A pass that fails adds nothing to the stored entries.
                self._now = _Calls(ChainMap({}, known.names), ChainMap({}, known.ended), dict(known.newest))
                self._now.add(self._new)
                if not self._begun:
                    self._now.end_input()
        return self._now

    def ids_with(self, messages: Sequence[AnyMessage]) -> Container[str]:
        """Return the ids of all calls in the session's events and in some messages, for membership tests.

        Args:
            messages: The history, whose calls may have no events. Only messages after those of the previous call are
                read, if it still begins with them.
        """
        # Compaction or a person may have replaced the messages that were read.
        if self._messages > len(messages) or (self._messages and messages[self._messages - 1] is not self._last):
            self._messages = 0
        for message in messages[self._messages :]:
            self._ids.update(dict.fromkeys(call_ids(message), ""))
        self._messages, self._last = len(messages), messages[-1] if messages else None
        return ChainMap(self._ids, self._calls.names)

    @property
    def ended(self) -> Container[str]:
        """Plan ids of the calls of earlier inputs, for membership tests."""
        return self._calls.ended

    @property
    def newest(self) -> Container[str]:
        """Plan ids of the calls of the newest input, for membership tests."""
        return self._calls.newest

    def results(self) -> dict[str, Any]:
        """Return plan id → result as plain JSON, for the newest input's calls that succeeded, in all its waves.

        Of several calls with the same plan id, only the newest counts; if it has no success, the id is absent.
        """
        return {
            name: _value(entry)
            for name, (_, entry) in self._calls.newest.items()
            if entry is not None and entry["status"] in SUCCESSES
        }


def recorded_ids(events: Sequence[StoredEvent]) -> set[str]:
    """Return the ids of the newest wave's calls that have a result of any status."""
    return {entry["id"] for entry in _answers(events, "plan")}


def failed_ids(events: Sequence[StoredEvent]) -> set[str]:
    """Return the plan ids of the newest wave's calls whose result no other call can use, such as an error."""
    names = plan_ids(events)
    return {_name_of(each, names) for each in _answers(events, "plan") if each["status"] not in SUCCESSES}


def answers_of_wave(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the events with the results of the newest wave, in the order in which they were stored."""
    return list(_answers(events, "plan"))[::-1]


def _answers(events: Sequence[StoredEvent], since: str, types: Collection[str] = _ANSWERS) -> Iterator[StoredEvent]:
    """Yield the events with results, newest first, back to the newest event of the type `since`."""
    for entry in reversed(events):
        if entry["type"] == since:
            return
        if entry["type"] in types:
            yield entry


def result_value(content: Any) -> Any:
    """Return the value that a reference to a result stands for, given only the content of the result."""
    return _value({"content": content})


def output_value(output: CallResult) -> Any:
    """Return the value that a reference to the result of a call stands for, before its event exists."""
    return _value({"content": output.content, **output.stored})


def _value(entry: StoredEvent) -> Any:
    """Return the value of a result event, in the form that references insert: content blocks are reduced to their
    text."""
    value = value_of(entry)
    # An image cannot be an argument of a call; accompanying text such as a caption can.
    return text_of(value) if value is entry["content"] and isinstance(value, list) else value


def account(events: Sequence[StoredEvent]) -> dict[CallOutcome, list[str]]:
    """Return the names of the newest input's calls by how they ended, each list in the order of the results.

    Calls of tools that the model's provider ran are included. All four outcomes are keys, e.g. `{"finished":
    ["search"], "failed": [], "unknown": [], "skipped": []}`.

    Args:
        events: The session's events, oldest first.
    """
    found: dict[CallOutcome, list[str]] = {"finished": [], "failed": [], "unknown": [], "skipped": []}
    for entry in _answers(events, "user_message", (*_ANSWERS, "provider_call")):
        found[OUTCOMES[entry["status"]]].append(str(call_name(entry) or entry.get("name")))
    return {outcome: names[::-1] for outcome, names in found.items()}


def stored_value(content: str | list[Any], value: Any) -> dict[str, Any]:
    """Return the fields by which a result event stores the result's value, in addition to the content.

    Empty if the value is the content's text; `encoding` if the text is JSON of the value; else `value`.

    Args:
        content: The content of the result.
        value: The value, as plain JSON.
    """
    if isinstance(value, str) and is_text(content) and value == text_of(content):
        return {}
    return {"encoding": "json"} if _holds(content, value) else {"value": value}


def structured_content(content: str | list[Any], artifact: Any) -> dict[str, Any]:
    """Return the fields by which a result event stores the structured content of an MCP tool; empty if there is none.

    MCP's SDKs wrap a value that is not an object as `{"result": value}`; the bare value is stored then, unless
    `content` has the object itself.

    Args:
        content: The content of the result.
        artifact: The artifact of the tool message.
    """
    value = artifact.get("structured_content") if isinstance(artifact, dict) else None
    if value is None:
        return {}
    if isinstance(value, dict) and list(value) == ["result"] and not _holds(content, value):
        value = value["result"]
    return stored_value(content, value)


def value_of(entry: Mapping[str, Any]) -> Any:
    """Return the result in a `tool_result` or `delegation_response` event as plain JSON.

    A result that was JSON text is decoded; content blocks without text alone are returned as they are.
    """
    if "value" in entry:
        return entry["value"]
    content = entry["content"]
    if entry.get("encoding") == "json" and (decoded := decode(text_of(content))) is not None:
        return decoded[0]
    return text_of(content) if is_text(content) else content


def is_text(content: str | list[Any]) -> bool:
    """Whether a content is only text: a string, or a list of strings and text blocks."""
    return isinstance(content, str) or all(isinstance(block, str) or block.get("type") == "text" for block in content)


def _holds(content: str | list[Any], value: Any) -> bool:
    """Whether the text of a content is JSON equal to a value."""
    decoded = decode(text_of(content))
    # Compared as JSON: in Python 1, 1.0 and True are equal.
    return decoded is not None and _canonical(decoded[0]) == _canonical(value)


def _canonical(value: Any) -> str:
    """Return a value as JSON text with sorted keys, by which equal values are equal."""
    return json.dumps(value, sort_keys=True)


def as_value(returned: Any) -> Any:
    """Convert a tool's return value to JSON types.

    Pydantic models and dataclasses become objects, also inside lists and dicts; bytes become text or base64. Types
    without a JSON form, and iterators, which are not consumed, become their `str()`.

    Raises:
        ValueError: The value contains itself or is nested too deeply.
    """
    if isinstance(returned, Iterator):
        # Reading an iterator would consume it, and need not end.
        return str(returned)
    try:
        return to_jsonable_python(returned, by_alias=True, serialize_unknown=True)
    except PydanticSerializationError:
        # Bytes that are not UTF-8.
        return to_jsonable_python(returned, by_alias=True, serialize_unknown=True, bytes_mode="base64")


def as_json(returned: Any) -> str | None:
    """Return a tool's return value as JSON text. None if the value is text itself, or cannot be converted to JSON."""
    try:
        value = as_value(returned)
    except ValueError:
        return None
    return None if isinstance(value, str) else clean(json.dumps(value, ensure_ascii=False))
