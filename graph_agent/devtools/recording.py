"""Reads a session as a recording: what its models replied, what its calls returned, and what people decided.

A session is one LangGraph thread; an input is one message of a user with everything up to its answer; a step is one
plan with the calls that it made (its wave). A recording has all that a test, a replay or an evaluation case needs. It
is read from the session's events and messages; `gaps` names what they do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from graph_agent.base._internal.text import check_session_id, text_of, to_json_safe
from graph_agent.base.errors import InputError
from graph_agent.base.history.call_events import SETTLED, call_of, value_of
from graph_agent.base.history.events import NOT_RUN, ResultStatus, StoredEvent, is_own
from graph_agent.base.history.plan_parts import ModelCallRecord, Purpose
from graph_agent.base.input_ids import input_id_in
from graph_agent.base.input_messages import is_user_input
from graph_agent.base.types import NO_USAGE, SessionStatus, StopReason, Usage, needed_ids, plan_id_of
from graph_agent.base.usage import add_usage
from graph_agent.core.state.lengths import lengths_of
from graph_agent.core.state.messages import failure_of
from graph_agent.session.importing import read_history
from graph_agent.session.results import TrackedCall, planned_arguments, planned_calls
from graph_agent.session.trace import inputs_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver

Effect = Literal["read", "write"]
"""`write` for a call that may change something outside the agent, `read` for one that does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReply:
    """A reply of a model, or a request that got none."""

    purpose: Purpose
    """What the reply is for: a plan, the answer, or a summary of older messages."""
    content: str | list[Any] = ""
    """Text, or content blocks."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Its calls as planned, each with the model's own `id`, `name`, `arguments` and, if it has any, `needs`."""
    usage: Mapping[str, Any] | None = None
    """Tokens of request and reply, as LangChain's `usage_metadata`; None if the provider reported none."""
    finish_reason: str = ""
    """Why the provider ended the reply, if it was cut off; empty for a complete reply."""
    error: str = ""
    """Kind of the model's error, or `cancelled`; empty for a reply."""
    is_stored: bool = True
    """Whether the session has the reply; False for one that a hook or a repair replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResult:
    """The result of a call."""

    status: ResultStatus
    """How the call ended."""
    content: str | list[Any]
    """The whole output: text, or content blocks."""
    value: Any
    """The output as plain JSON: the value that a tool returned as JSON, or the text (see
    `graph_agent.state.events`).
    """
    artifact: Any = None
    """The artifact of the tool's message; None if there is none."""
    usage: Usage | None = None
    """Tokens and model calls of a delegate; None for a tool."""
    event: StoredEvent = field(repr=False, default_factory=dict)
    """The event of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call of a step."""

    id: str
    """Id of the call, unique within its session."""
    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    arguments: Mapping[str, Any]
    """The arguments it ran with; those of the plan for a call that never started."""
    needs: tuple[str, ...] = ()
    """Ids of calls of the same plan that it waited for."""
    effect: Effect | None = None
    """Whether the call may change something; None if the agent is unknown."""
    started: bool = False
    """Whether the call was run, also if its outcome is unknown."""
    result: RecordedResult | None = None
    """The result of the call; None while it is unfinished."""
    questions: tuple[Any, ...] = ()
    """What the call asked a person before its result, in order; only a recording of the fixture `recorded` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One plan and its wave; step 0 has what happened before the first plan."""

    number: int
    """Number of the step within its input."""
    replies: tuple[RecordedReply, ...] = ()
    """The replies of models in this step, in order; those of the answer included."""
    calls: tuple[RecordedCall, ...] = ()
    """The calls of the plan, in the order planned."""
    events: tuple[StoredEvent, ...] = field(repr=False, default=())
    """All events of the step, in order: approvals, steering, loop notices, limits, warnings and others."""

    @property
    def plan_fields(self) -> dict[str, Any] | None:
        """The fields of a structured plan except its calls, in the JSON of the plan; None without a structured plan.

        Empty fields and the status `continue` are left out. A plan without calls that ended planning has the answer as
        `answer`.
        """
        plan = next((entry for entry in self.events if entry["type"] == "plan" and "planner" in entry), None)
        if plan is None:
            return None
        fields = {name: plan[name] for name in ("status", "action", "reasoning", "slots") if plan.get(name)}
        # A plan in a script has this status unless it names another.
        if fields.get("status") == "continue":
            del fields["status"]
        answers = [entry for entry in self.events if entry["type"] == "agent_response" and "model_calls" not in entry]
        return {**fields, "answer": text_of(answers[-1]["content"])} if answers and not plan["calls"] else fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedInput:
    """One input and all that followed up to its answer."""

    number: int
    """Number within the session, from 1."""
    input_id: str | None
    """Id that the caller gave it; None if there is none, or if its checkpoint was pruned."""
    contents: tuple[str | list[Any], ...]
    """The user's messages; usually one."""
    steps: tuple[RecordedStep, ...]
    """The steps, in order; step 0 has what happened before the first plan."""
    answer: str
    """Text of the answer; empty while there is none."""
    status: SessionStatus
    """Status at its end; `RUNNING` for an unfinished input."""
    stop_reason: StopReason | None
    """Why it stopped; None for an unfinished input."""
    usage: Usage
    """Tokens and model calls, those of delegates included."""

    @property
    def content(self) -> str | list[Any]:
        """The user's message; of several, their texts, joined by blank lines."""
        if len(self.contents) == 1:
            return self.contents[0]
        return "\n\n".join(map(text_of, self.contents))

    @property
    def calls(self) -> tuple[tuple[int, RecordedCall], ...]:
        """Each call with the number of its step, in order: `((1, call), …)`."""
        return tuple((step.number, call) for step in self.steps for call in step.calls)

    @property
    def events(self) -> Iterator[StoredEvent]:
        """The events of the input, in order; an iterator."""
        return (entry for step in self.steps for entry in step.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A session as it ran, with all of its inputs."""

    session_id: str
    """Id of the session."""
    inputs: tuple[RecordedInput, ...]
    """The inputs of the session, oldest first."""
    gaps: tuple[str, ...] = ()
    """What the session does not have stored, one sentence each."""

    def input(self, number: int) -> RecordedInput:
        """Return an input by its number, from 1; negative numbers count from the newest, which is -1.

        Raises:
            InputError: If there is no such input.
        """
        at = number - 1 if number > 0 else len(self.inputs) + number
        if number == 0 or not 0 <= at < len(self.inputs):
            raise InputError(
                f"Session {self.session_id!r} has {len(self.inputs)} inputs, and no input {number}; the first is 1, "
                "the newest -1."
            )
        return self.inputs[at]


def as_left(recorded: RecordedInput) -> RecordedInput:
    """Return an input as the next one found it: without the results that the next one gave to its open calls.

    An input that has ended is returned unchanged.
    """
    if recorded.status != SessionStatus.RUNNING or not recorded.steps:
        return recorded
    *before, last = recorded.steps
    calls = tuple(
        replace(each, result=None) if each.result is not None and text_of(each.result.content) in SETTLED else each
        for each in last.calls
    )
    return replace(recorded, steps=(*before, replace(last, calls=calls)))


async def read_recording(
    saver: BaseCheckpointSaver[Any], session_id: str, *, writes: Callable[[str], bool] | None = None
) -> Recording:
    """Read a session as a recording, from its newest checkpoint and what follows it; nothing is changed.

    Args:
        saver: The checkpointer that has the session.
        session_id: Id of the session.
        writes: Returns whether a call may change something, by its name; None if the agent is unknown.

    Raises:
        InputError: If there is no such session, or the id is invalid.
        DamagedSessionError: If a part of its history is missing.
    """
    thread: RunnableConfig = {"configurable": {"thread_id": check_session_id(session_id), "checkpoint_ns": ""}}
    newest = await saver.aget_tuple(thread)
    if newest is None:
        raise InputError(f"There is no session {session_id!r}; `graph-agent sessions` lists them.")
    history = await read_history(saver, session_id, newest, pending=True)
    # The id that the caller gave an input is in the metadata of its first checkpoint, found by the number of events
    # before.
    ids = {
        lengths_of(found.metadata).get("events", 0): mark.id
        async for found in saver.alist(thread, filter={"source": "input"})
        if (mark := input_id_in(found.metadata)) is not None
    }
    recording = recording_of(session_id, history["events"], history["messages"], writes=writes, input_ids=ids)
    values = newest.checkpoint["channel_values"]
    if not recording.inputs or recording.inputs[-1].status == SessionStatus.RUNNING:
        return recording
    # What is stored of the newest input is exact; that of an older one is the sum of its events.
    last = recording.inputs[-1]
    usage, reason = values.get("usage") or last.usage, values.get("stop_reason") or last.stop_reason
    return replace(recording, inputs=(*recording.inputs[:-1], replace(last, usage=usage, stop_reason=reason)))


def recording_of(
    session_id: str,
    events: Iterable[StoredEvent],
    messages: Iterable[AnyMessage],
    *,
    writes: Callable[[str], bool] | None = None,
    input_ids: Mapping[int, str] | None = None,
    questions: Mapping[str, Sequence[Sequence[Any]]] | None = None,
) -> Recording:
    """Return the recording of a session from its events and messages. Missing details are noted in `gaps`.

    Args:
        session_id: Id of the session.
        events: Its events, oldest first.
        messages: Its messages, oldest first; without them, replies and calls lack details.
        writes: Returns whether a call may change something, by its name; None if the agent is unknown.
        input_ids: Number of events before an input → the id that the caller gave the input; None if unknown.
        questions: Call id → what each call of this id asked a person, in order; several calls may have one id.
    """
    # Iterators, since each call with this id takes the next list of questions.
    asked = {id_: iter(each) for id_, each in (questions or {}).items()}
    inputs: list[RecordedInput] = []
    gaps: list[str] = []
    turns = _message_turns(messages)
    # Messages are assigned by the number of their input, as they have no link to it.
    split, first = list(inputs_of(events)), 0
    for number, own in enumerate(split, 1):
        reader = _InputReader(own, turns[number - 1] if len(turns) == len(split) else [], writes, asked)
        inputs.append(reader.read(number, (input_ids or {}).get(first)))
        first += len(own)
        gaps += [f"Input {number}: {gap}" for gap in reader.gaps]
    if len(turns) != len(split):
        gaps.insert(0, f"The history has {len(turns)} inputs, and the events have {len(split)}: replies lack details.")
    return Recording(session_id=session_id, inputs=tuple(inputs), gaps=tuple(gaps))


def _message_turns(messages: Iterable[AnyMessage]) -> list[list[AnyMessage]]:
    """Return one list for each input of the user, with the messages after it and without the user's own.

    Messages before the first input are left out.
    """
    turns: list[list[AnyMessage]] = []
    is_input = False
    for message in messages:
        was_input, is_input = is_input, isinstance(message, HumanMessage) and is_user_input(message)
        # Several messages of the user in a row are one input, as `inputs_of` divides the events.
        if is_input and not was_input:
            turns.append([])
        elif turns and not is_input:
            turns[-1].append(message)
    return turns


class _InputReader:
    """Reads one input from its events, and from the messages that followed it.

    Args:
        events: The events of the input.
        messages: The messages after the user's; empty if they cannot be assigned.
        writes: Returns whether a call may change something, by its name; None if the agent is unknown.
        asked: Call id → iterator over the questions of each call with this id; items are consumed.
    """

    def __init__(
        self,
        events: Sequence[StoredEvent],
        messages: Sequence[AnyMessage],
        writes: Callable[[str], bool] | None,
        asked: Mapping[str, Iterator[Sequence[Any]]],
    ) -> None:
        self.gaps: list[str] = []
        """The facts that are not stored, one sentence each."""
        self._events = events
        self._messages = messages
        self._writes = writes
        self._asked = asked
        self._at = 0
        """Index of the first message that no event has been matched with."""
        self._summaries = (entry for entry in events if entry["type"] == "summary")
        self._requested = {
            call["id"]: call
            for entry in events
            if is_own(entry, "approval_request")
            for call in reversed(entry["calls"])
        }
        """The calls of approvals as the model planned them; the history has the edited ones."""

    def read(self, number: int, input_id: str | None) -> RecordedInput:
        """Return the input with its number in the session and the id that the caller gave it, None for no id.

        Call it once.

        Answer and stop reason are empty and None while the input has not ended. `gaps` receives what is not stored.
        """
        tracked = self._calls()
        steps: dict[int, list[StoredEvent]] = {}
        for entry in self._events:
            steps.setdefault(entry["step"], []).append(entry)
        status = next((entry["to"] for entry in reversed(self._events) if entry["type"] == "status"), "RUNNING")
        answers = [entry for entry in self._events if entry["type"] == "agent_response"]
        replies = {step: tuple(self._replies_of(entries)) for step, entries in sorted(steps.items())}
        return RecordedInput(
            number=number,
            input_id=input_id,
            contents=tuple(entry["content"] for entry in self._events if entry["type"] == "user_message"),
            steps=tuple(
                RecordedStep(
                    number=step,
                    replies=replies[step],
                    calls=tuple(call for at, call in tracked if at == step),
                    events=tuple(entries),
                )
                for step, entries in sorted(steps.items())
            ),
            answer=text_of(answers[-1]["content"]) if answers and status != "RUNNING" else "",
            status=SessionStatus(status),
            stop_reason=_stop_reason(self._events, status),
            usage=reported_usage(self._events),
        )

    def _calls(self) -> list[tuple[int, RecordedCall]]:
        """Return each call with the number of its step, in the order planned.

        Its arguments are those with which it started, or else the planned ones; empty if neither is stored. A call that
        was refused or skipped counts as not started.
        """
        # Only the tool's message has the artifact; no event does.
        artifacts = {
            message.tool_call_id: message.artifact for message in self._messages if isinstance(message, ToolMessage)
        }
        planned = planned_arguments(self._messages)
        plans = (needed_ids(entry) for entry in self._events if entry["type"] == "plan")
        needs = {id_: needed for plan in plans for id_, needed in plan.items()}
        found: list[tuple[int, RecordedCall]] = []
        for tracked in planned_calls(self._events):
            id_ = tracked.planned["id"]
            started = call_of(tracked.started) if tracked.started is not None else None
            result = self._result(tracked, artifacts.get(id_))
            call = RecordedCall(
                id=id_,
                name=tracked.planned["name"],
                arguments=to_json_safe(started["arguments"] if started is not None else planned.get(id_, {})),
                needs=needs.get(id_, ()),
                effect=None if self._writes is None else "write" if self._writes(tracked.planned["name"]) else "read",
                # A call whose event is stored may still have been refused or skipped, which only its result shows.
                started=started is not None and (result is None or result.status not in NOT_RUN),
                result=result,
                questions=tuple(next(self._asked.get(id_, iter(())), ())) if result is not None else (),
            )
            found.append((self._step_of(tracked), call))
        return found

    def _step_of(self, tracked: TrackedCall) -> int:
        """Return the step in which a call ran, or else in which it was planned; 0 if neither is known."""
        entry = tracked.started or tracked.result
        if entry is not None:
            return int(entry["step"])
        id_ = tracked.planned["id"]
        plans = [entry for entry in self._events if entry["type"] == "plan"]
        return next((int(p["step"]) for p in reversed(plans) if any(call["id"] == id_ for call in p["calls"])), 0)

    def _result(self, tracked: TrackedCall, artifact: Any) -> RecordedResult | None:
        """Return the result of a call; None if it has none. `artifact` is that of its message."""
        entry = tracked.result
        if entry is None:
            return None
        return RecordedResult(
            status=entry["status"],
            content=entry["content"],
            value=value_of(entry),
            artifact=to_json_safe(artifact),
            usage=entry.get("usage"),
            event=entry,
        )

    def _replies_of(self, entries: Sequence[StoredEvent]) -> Iterator[RecordedReply]:
        """Yield the replies of models in the events of one step, in order; note in `gaps` what is not stored."""
        for entry in entries:
            records = list(entry.get("model_calls", ()))
            if entry["type"] == "plan" and not records and not entry.get("cached"):
                self.gaps.append("an older version stored no model calls, so their order and usage are unknown.")
            if entry["type"] in ("plan", "agent_response"):
                yield from self._attempts(entry, records)
            else:
                # Facts are extracted into the memory of the recorded agent alone, and not in a replay.
                yield from (self._unanswered(record) for record in records if record["purpose"] != "memory")

    def _attempts(self, entry: StoredEvent, records: list[ModelCallRecord]) -> Iterator[RecordedReply]:
        """Yield the replies that led to a plan or an answer, with failed requests.

        Only the last reply without an error has its content; of any other, only the request is known. Of several
        candidates, only the last request is yielded. A plan without recorded requests has one reply.

        Args:
            entry: The event of the plan or the answer.
            records: The requests that the event reports, in order.
        """
        if entry.get("candidates"):
            records = records[-1:]  # a replay asks once, for the plan that was chosen
        is_plan = entry["type"] == "plan"
        message = self._message(entry) if records and (not is_plan or entry["calls"]) else None
        last = next((at for at in range(len(records) - 1, -1, -1) if not records[at].get("error")), -1)
        if is_plan and not records:
            records, last = [ModelCallRecord(purpose="plan", model="", started="", duration_s=0.0)], 0
        for at, record in enumerate(records):
            if at == last:
                yield self._stored(entry, record, message)
            else:
                yield self._unanswered(record)

    def _stored(self, entry: StoredEvent, record: ModelCallRecord, message: AIMessage | None) -> RecordedReply:
        """Return the reply that became a plan or an answer.

        Its usage, finish reason and content come from `message`, or if that is None, because it is not stored, from the
        request (`record`) and the event (`entry`). The finish reasons of complete replies become empty.
        """
        usage = (message.usage_metadata if message is not None else None) or _usage_in(record)
        finish = str(message.response_metadata.get("finish_reason", "")) if message is not None else ""
        content = entry["reasoning"] if entry["type"] == "plan" else entry["content"]
        calls: tuple[Mapping[str, Any], ...] = ()
        if entry["type"] == "plan":
            calls = tuple(self._planned(call, message) for call in entry["calls"])
            content = content if message is None else message.content
        return RecordedReply(
            purpose=record["purpose"],
            content=to_json_safe(content),
            tool_calls=calls,
            usage=None if usage is None else to_json_safe(dict(usage)),
            # Both are the reasons of complete replies, which a script does not name.
            finish_reason=finish if finish not in ("stop", "tool_calls") else "",
        )

    def _planned(self, call: Mapping[str, Any], message: AIMessage | None) -> Mapping[str, Any]:
        """Return a call of a plan as the model made it: id, name, arguments and, if there are any, `needs`.

        If a person or a hook changed the call, the name and the arguments are those from before, as the approval
        request or the message has them. Notes a gap, with empty arguments, if these are not stored.
        """
        id_, arguments, name = call["id"], {}, call["name"]
        if (held := self._requested.get(id_)) is not None:
            name, arguments = held["name"], held["arguments"]
        elif known := next((each for each in message.tool_calls if each["id"] == id_), None) if message else None:
            arguments = known["args"]
        else:
            found = next(
                (started for each in self._events if (started := call_of(each)) and started["id"] == id_), None
            )
            if found is None:
                self.gaps.append(f"the arguments of the call {id_} are not stored, because it did not start.")
            else:
                arguments = found["arguments"]
        needs = {"needs": list(call["needs"])} if call.get("needs") else {}
        return {"id": plan_id_of(call), "name": name, "arguments": to_json_safe(arguments), **needs}

    def _message(self, entry: StoredEvent) -> AIMessage | None:
        """Return the next message of a plan with calls, or of an answer; None if middleware has removed it.

        Messages are matched in order: by the ids of calls, or by the text of the answer.
        """
        wanted = {call["id"] for call in entry.get("calls", ())}
        for at, message in enumerate(self._messages[self._at :], self._at + 1):
            # A message that reports a failure is the framework's, and no reply of a model.
            if not isinstance(message, AIMessage) or failure_of(message) is not None:
                continue
            ids = {call["id"] for call in message.tool_calls}
            if wanted & ids or (not wanted and not ids and text_of(message.content) == text_of(entry["content"])):
                self._at = at
                return message
        return None

    def _unanswered(self, record: ModelCallRecord) -> RecordedReply:
        """Return the reply of a request that led to no plan and no answer: a summary, a failure, or a replaced reply.

        Only a summary has its content. Notes a gap for a reply that was replaced.
        """
        purpose, error = record["purpose"], record.get("error", "")
        if purpose == "summary" and not error and (summary := next(self._summaries, None)) is not None:
            return RecordedReply(purpose=purpose, content=summary["content"], usage=_usage_in(record))
        if not error:
            self.gaps.append(f"a reply for the {purpose} is not stored, because a hook or a repair replaced it.")
        return RecordedReply(purpose=purpose, usage=_usage_in(record), error=error, is_stored=False)


def _usage_in(record: ModelCallRecord) -> dict[str, int] | None:
    """Return the tokens of a recorded request, as LangChain's `usage_metadata`; None if they are unknown."""
    if "input_tokens" not in record:
        return None
    given, made = record["input_tokens"], record.get("output_tokens", 0)
    return {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}


def decision_in(entry: StoredEvent) -> dict[str, Any]:
    """Return the decision of an `approval_decision` event, such as `{"type": "edit", "edited_action": {"args": {…}}}`.

    It has no `decided_by`, i.e. not the person who took it.
    """
    decision: dict[str, Any] = {"type": entry["decision"]}
    if entry["decision"] == "edit":
        name = {"name": entry["edited_name"]} if "edited_name" in entry else {}
        decision["edited_action"] = {**name, "args": entry["arguments"]}
    return {**decision, "message": entry["message"]} if "message" in entry else decision


def reported_usage(events: Iterable[Mapping[str, Any]]) -> Usage:
    """Return the sum of tokens, model calls and cost that events report, those of delegates included.

    Requests that failed before they were counted do not count.
    """
    total: Usage = NO_USAGE
    for entry in events:
        for record in entry.get("model_calls", ()):
            # The provider has counted nothing for such a request.
            if record.get("error") and "input_tokens" not in record:
                continue
            counts = _usage_in(record) or {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
            asked: Usage = {**counts, "model_calls": 1}  # type: ignore[typeddict-item]  # the three counts of a usage
            total = add_usage(total, {**asked, "cost": record["cost"]} if "cost" in record else asked)
        if entry["type"] == "delegation_response" and entry.get("usage"):
            total = add_usage(total, entry["usage"])
    return total


_REASONS: Mapping[str, StopReason] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "ABORTED": "aborted",
    "TURN_LIMIT": "turn_limit",
}
"""Final status → reason of the stop, where the status determines it."""


def _stop_reason(events: Sequence[StoredEvent], status: str) -> StopReason | None:
    """Return why an input with a final status stopped; None for one that has not ended.

    For `ROUND_LIMIT` it is the reason of its last limit, or `loop`.
    """
    if status != SessionStatus.ROUND_LIMIT:
        return _REASONS.get(status)
    # The status alone does not distinguish the limits: steps, tokens, cost and deadline share it.
    limit = next((entry for entry in reversed(events) if entry["type"] in ("limit", "loop_detected")), None)
    return limit.get("reason", "loop") if limit is not None else None
