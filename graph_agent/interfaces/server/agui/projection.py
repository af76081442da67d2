"""Projects the parts of a run to AG-UI events.

A *name* of a call is its id for the client, which does not repeat. A *subagent* is AG-UI's term for a delegate, the
agent that receives a task from this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ag_ui import core
from langchain_core.messages import AIMessage
from langgraph.types import StateSnapshot

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.history.call_events import call_name
from graph_agent.base.history.events import SUCCESSES, StoredEvent
from graph_agent.base.types import NO_USAGE, SessionStatus, Usage
from graph_agent.interfaces.server.agui.messages import (
    CallNames,
    ClientView,
    agui_interrupts,
    content_text,
    delegations,
    given_results,
    json_of,
    own_held_calls,
    result_id,
    snapshot_of,
)
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome
from graph_agent.interfaces.server.chat.run import COMMENTARY, MessageBreak, Part, progress_fields
from graph_agent.interfaces.server.chat.run_spec import is_client_call
from graph_agent.interfaces.server.feeds import LivePart
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.session import results

PROTOCOL = "1.0"
"""The version of AG-UI that is declared to clients."""
_STOPPED = "The run was stopped before this delegate had answered."


@dataclass(frozen=True, slots=True)
class RunIds:
    """The ids of a run as the client chose them, and whether the client is an old one."""

    thread_id: str
    run_id: str
    is_legacy: bool
    """Whether the client is older than AG-UI 1.0, which it shows by declaring no version.

    Such a client refuses the outcome `cancelled`, the list of its own calls that wait, and a declared version.
    """


class Projection:
    """Converts the parts of one run to AG-UI events.

    Every method yields events to send in this order. `start` must be called first, and one of `end`, `stored`, `finish`
    and `error` last; what is open then is ended.

    Args:
        ids: The ids of the run.
        before: The session's state before the run.
        request: The messages of the request, which the client has.
        own_fields: Fields of the agent's own state that clients receive.
        client_state: The state that the client sent. Fields of it that the agent does not have are sent back unchanged.
        written: Fields of `client_state` that the run takes over.
    """

    def __init__(
        self,
        ids: RunIds,
        before: StateSnapshot,
        request: Sequence[core.Message],
        *,
        own_fields: Sequence[str] = (),
        client_state: Any = None,
        written: Collection[str] = (),
    ) -> None:
        messages = before.values.get("messages", [])
        self._ids = ids
        self._request = request
        self._before = before
        self._own_fields = own_fields
        self._client_state = client_state if isinstance(client_state, Mapping) else {}
        self._written = {name: self._client_state[name] for name in written}
        self._names = CallNames(messages)
        self._shown_fields: dict[str, Any] = {}
        """The agent's own state fields, with the values that the client has."""
        self._view = ClientView(request)
        """Tracks the messages that the client has."""
        self._given = {name: message.id for name, message in given_results(request).items()}
        """Name of a call → id of the result that the client sent itself."""
        self._parent: str | None = next(
            (each.id for each in reversed(messages) if isinstance(each, AIMessage) and each.tool_calls), None
        )
        """Id of the message whose calls are sent; None before the first."""
        self._text: str | None = None
        """Id of the open text message; None if none is open."""
        self._reasoning: str | None = None
        """Id of the open reasoning message; None if none is open."""
        self._reasonings = 0
        self._texts = 0
        self._step: str | None = None
        """Name of the open step; None if none is open."""
        self._wave: set[str] = set()
        """Ids of the calls of the open step that have no result."""
        self._subagents: set[str] = set()
        """Names of the delegations that have begun and not ended."""
        self._delegate_texts: dict[str, str] = {}
        """Name of an open delegation → id of its open text message."""
        self._announced: set[str] = set()
        """Ids of calls of the newest plans that were sent to the client."""
        self._settled = _settled(before)
        """Ids of calls whose results an earlier run has sent, although they are not in the history yet."""

    def start(self, ignored: Sequence[str] = ()) -> Iterator[core.BaseEvent]:
        """Yield the first events: the start of the run and, if the agent has own fields, a snapshot of the state.

        Args:
            ignored: Ids of interrupts that the request answers although they were answered before; they are reported by
                a custom event in between.
        """
        version = None if self._ids.is_legacy else PROTOCOL
        yield core.RunStartedEvent(thread_id=self._ids.thread_id, run_id=self._ids.run_id, protocol_version=version)
        if ignored:
            yield core.CustomEvent(name="resume_ignored", value={"interruptIds": list(ignored)})
        yield from self._state({**self._before.values, **self._written})

    def resume(self) -> Iterator[core.BaseEvent]:
        """Yield the events that begin a resumed run: the step of its unfinished calls, and the delegations among them
        that had begun.

        Nothing if no call is unfinished. Calls of the newest input count as sent, because the client has them already.
        """
        events = results.since_last_input(self._before.values.get("events", []))
        calls = results.planned_calls(events)
        unfinished = [call for call in calls if call.result is None and call.planned["id"] not in self._settled]
        # The client has every call of the message from the snapshot at the end of the run before.
        self._announced = {call.planned["id"] for call in calls}
        if unfinished:
            step = next((event["step"] for event in reversed(events) if event["type"] == "plan"), 0)
            yield from self._open_step(step, [call.planned["id"] for call in unfinished])
        for call in unfinished:
            if call.started is not None and call.started["type"] == "delegation_request":
                yield from self._open_subagent(call.planned["id"], call.started["target"])

    def join(self, live: Sequence[LivePart]) -> Iterator[core.BaseEvent]:
        """Yield the events that a client needs to follow a run of another request from its middle: the stored messages,
        the open step, and the text of the message that is being written, from its beginning, unless it is the newest
        stored message already.

        Args:
            live: The parts that the run has produced since its newest stored event.
        """
        yield from self._messages(self._before)
        yield from self.resume()
        begun = ""
        for part in live:
            begun = begun + part["text"] if part["type"] == "text" else "" if part["type"] == "break" else begun
        messages = self._before.values.get("messages", [])
        stored = next((each.text for each in reversed(messages) if isinstance(each, AIMessage)), "")
        # The text may have been stored between the two readings.
        if begun.strip() != stored.strip():
            yield from self._delta(begun, None)

    def follow(self, live: Sequence[LivePart], events: Sequence[StoredEvent]) -> Iterator[core.BaseEvent]:
        """Yield the events for further output of another request's run: its text, progress (`CustomEvent`) and calls.

        Other live parts, such as reasoning, are dropped; all live parts come before the stored events.

        Args:
            live: Parts that were produced since the last call.
            events: Events of the history that were stored since the last call.
        """
        for part in live:
            match part["type"]:
                case "text":
                    yield from self._delta(part["text"], None)
                case "break":
                    yield from self._close_text()
                case "progress":
                    yield core.CustomEvent(name="progress", value=part)
        for event in events:
            yield from self._call_event(event)

    def part(self, part: Part) -> Iterator[core.BaseEvent]:
        """Yield the events of one part of the run, except its end: a piece of text or reasoning, a call event, a change
        of state, progress, or a piece of a delegate's text.

        Yields nothing for parts that AG-UI has no event for, nor for texts of an earlier run (`COMMENTARY`), which the
        snapshot at the end has.
        """
        match part:
            case results.Token(text, message_id=message_id) if not message_id.startswith(COMMENTARY):
                yield from self._delta(text, message_id)
            case MessageBreak():
                yield from self._close_text()
            case results.Reasoning(text):
                yield from self._reason(text)
            case results.EventAdded(event, message_id=message_id):
                self._parent = message_id or self._parent
                yield from self._call_event(cast("StoredEvent", event))
            case results.StateValues(values):
                yield from self._state_delta(values)
            case results.Progress():
                yield core.CustomEvent(name="progress", value=progress_fields(part))
            case results.DelegatePart(id_, part=results.Token(text, message_id=message_id)):
                yield from self._delegate_text(self._names.of(id_), text, message_id)
            case _:
                pass

    def end(
        self, outcome: ChatOutcome, state: StateSnapshot, used_before: Usage = NO_USAGE
    ) -> Iterator[core.BaseEvent]:
        """Yield the last events of a run: the part of the answer that was not streamed, unless a question is open,
        whose text it would be, then the events of `finish`.

        Args:
            outcome: How the run ended.
            state: The session's state after the run.
            used_before: Usage that earlier runs of the same input have reported.
        """
        result = results.stored_input(state)
        if outcome.rest and not results.open_interrupts(state):
            yield from self._delta(outcome.rest, outcome.reply.id if outcome.reply is not None else None)
        yield from self.finish(state, used_before, is_aborted=result.status == SessionStatus.ABORTED)

    def stored(self, state: StateSnapshot) -> Iterator[core.BaseEvent]:
        """Yield the last events of a request that started no run: the same as `finish`, for the stored state of the
        session.

        The calls of the newest input count as already sent, so that no events are yielded for them; its usage counts as
        already reported.
        """
        self._announced = {
            call.planned["id"]
            for call in results.planned_calls(results.since_last_input(state.values.get("events", [])))
        }
        yield from self.finish(state, state.values.get("usage") or NO_USAGE)

    def finish(
        self, state: StateSnapshot, used_before: Usage = NO_USAGE, *, is_aborted: bool = False
    ) -> Iterator[core.BaseEvent]:
        """Yield the events that end the run.

        These are the ends of open messages, the waiting calls, the ends of delegations and of the step, the state
        (whole if there are questions, else its changes), a snapshot of the messages, and the outcome. For a client of
        an older protocol, a stopped run ends with an error in place of the outcome.

        Args:
            state: The session's state after the run.
            used_before: Usage that earlier runs of the same input have reported.
            is_aborted: Whether the run was stopped.
        """
        interrupts = results.open_interrupts(state)
        yield from self._close_messages()
        for call in own_held_calls(interrupts):
            yield from self._announce(call["id"], call["name"], call["arguments"])
        pending = [each.value for each in interrupts if is_client_call(each)]
        for call in pending:
            yield from self._announce(call["id"], call["name"], call["arguments"])
        asked = agui_interrupts(interrupts, self._names)
        waiting = {self._names.of(id_): ids for id_, ids in delegations(interrupts).items()}
        # Before the step, in which they were started.
        yield from self._close_subagents(waiting)
        yield from self._close_step()
        if asked:
            yield from self._state(state.values)
        else:
            yield from self._state_delta(state.values)
        yield from self._messages(state)
        used, ended = _usage(state, used_before), results.stored_input(state)
        if is_aborted and self._ids.is_legacy:
            # An older client knows no cancelled outcome.
            yield core.RunErrorEvent(message="The run was stopped.", code="aborted", usage=used)
            return
        yield core.RunFinishedEvent(
            thread_id=self._ids.thread_id,
            run_id=self._ids.run_id,
            result={"status": ended.status.value, "stopReason": ended.values.get("stop_reason")},
            outcome=self._outcome(asked, [self._names.of(call["id"]) for call in pending], is_aborted=is_aborted),
            usage=used,
        )

    def _outcome(self, asked: list[core.Interrupt], pending: list[str], *, is_aborted: bool) -> Any:
        """Return AG-UI's outcome of the run: interrupts if there are any, else cancelled after a stop, else success.

        Args:
            asked: The AG-UI interrupts that must be answered.
            pending: Names of the client's own calls that wait for results, which a success lists, except for an old
                client.
            is_aborted: Whether the run was stopped.
        """
        if asked:
            return core.RunFinishedInterruptOutcome(interrupts=asked)
        if is_aborted:
            return core.RunFinishedCancelledOutcome()
        names = None if self._ids.is_legacy or not pending else pending
        return core.RunFinishedSuccessOutcome(pending_tool_call_ids=names)

    def error(self, problem: ProblemError, state: StateSnapshot | None = None) -> Iterator[core.BaseEvent]:
        """Yield the ends of what is open, then the events that end the run with an error, whose code is the category of
        the problem or else its kind. Open delegations end with an error, too.

        Args:
            problem: Why the run failed.
            state: The session's state after the run; None if it is unknown. Without it, no snapshot of the messages is
                sent.
        """
        yield from self._close_messages()
        yield from self._close_subagents({})
        yield from self._close_step()
        if state is not None:
            yield from self._messages(state)
        yield core.RunErrorEvent(message=problem.message, code=problem.category or problem.kind)

    def _state(self, values: Mapping[str, Any]) -> Iterator[core.BaseEvent]:
        """Yield a snapshot of the client's state, with the agent's own fields replaced; nothing if the agent has no own
        fields.

        The values of these fields then count as those that the client has.
        """
        if self._own_fields:
            self._shown_fields = self._fields(values)
            yield core.StateSnapshotEvent(snapshot={**self._client_state, **self._shown_fields})

    def _state_delta(self, values: Mapping[str, Any]) -> Iterator[core.BaseEvent]:
        """Yield a JSON patch for those own fields of the agent whose values the client does not have; nothing if there
        are none.

        The new values then count as those that the client has. A field that lost its value stays as it is.
        """
        fields, shown = self._fields(values), self._shown_fields
        added = {name: value for name, value in fields.items() if name not in shown or shown[name] != value}
        if added:
            self._shown_fields = {**shown, **added}
            # In an object, `add` also replaces.
            patch: list[Any] = [{"op": "add", "path": f"/{name}", "value": value} for name, value in added.items()]
            yield core.StateDeltaEvent(delta=patch)

    def _fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the agent's own fields of a state, field → JSON value. Fields without a value are left out."""
        return {name: to_json_safe(values[name]) for name in self._own_fields if name in values}

    def _messages(self, state: StateSnapshot) -> Iterator[core.BaseEvent]:
        """Yield one or two snapshots of the session's messages, after which the client has exactly these, in order."""
        found = snapshot_of(state.values.get("messages", []), state.values.get("events", []), self._request)
        for messages in self._view.snapshots(found):
            yield core.MessagesSnapshotEvent(messages=messages)
        self._view = ClientView(found)

    def _delta(self, text: str, message_id: str | None) -> Iterator[core.BaseEvent]:
        """Yield a piece of the answer's text; before it the start of a message, unless the message is open.

        An open reasoning, or an open message with another id, is ended first. Nothing for an empty text.

        Args:
            text: The piece.
            message_id: Id of the message; None to continue the open one, or to begin one with a generated id.
        """
        if not text:
            return
        yield from self._close_reasoning()
        if self._text is None or (message_id and message_id != self._text):
            yield from self._close_text()
            self._texts += 1
            self._text = message_id or f"{self._ids.run_id}-text-{self._texts}"
            self._view.add(self._text)
            yield core.TextMessageStartEvent(message_id=self._text, role="assistant")
        yield core.TextMessageContentEvent(message_id=self._text, delta=text)

    def _reason(self, text: str) -> Iterator[core.BaseEvent]:
        """Yield a piece of the model's reasoning; before it the start of a reasoning message, unless one is open.

        An open message of the answer is ended first.
        """
        if self._reasoning is None:
            yield from self._close_text()
            self._reasonings += 1
            self._reasoning = f"{self._ids.run_id}-reasoning-{self._reasonings}"
            yield core.ReasoningStartEvent(message_id=self._reasoning)
            yield core.ReasoningMessageStartEvent(message_id=self._reasoning, role="reasoning")
        yield core.ReasoningMessageContentEvent(message_id=self._reasoning, delta=text)

    def _call_event(self, event: StoredEvent) -> Iterator[core.BaseEvent]:
        """Yield the AG-UI events for a stored plan, call or result; nothing for other events.

        A plan ends the open messages, and with calls opens a step; a delegation that runs opens a subagent. An id that
        a plan uses again is a new call with a name of its own.
        """
        match event["type"]:
            case "plan":
                yield from self._close_messages()
                if event["calls"]:
                    for call in event["calls"]:
                        self._names.plan(call["id"])
                        self._announced.discard(call["id"])
                        self._settled.discard(call["id"])
                    yield from self._open_step(event["step"], [call["id"] for call in event["calls"]])
            case "tool_call":
                yield from self._announce(event["id"], event["name"], event["arguments"])
            case "delegation_request":
                yield from self._announce(event["id"], str(call_name(event)), {"task": event["task"]})
                if "refused" not in event:
                    yield from self._open_subagent(event["id"], event["target"])
            case "tool_result" | "delegation_response":
                yield from self._result(event)

    def _announce(self, id_: str, name: str, arguments: Any) -> Iterator[core.BaseEvent]:
        """Yield the AG-UI events for a planned call, after the ends of the open messages; nothing if they were sent
        before.

        Args:
            id_: The model's id of the call.
            name: Name of the tool.
            arguments: Arguments of the call.
        """
        if id_ in self._announced:
            return
        self._announced.add(id_)
        yield from self._close_messages()
        call = self._names.of(id_)
        self._view.add_call(call, self._parent or call)
        yield core.ToolCallStartEvent(tool_call_id=call, tool_call_name=name, parent_message_id=self._parent)
        yield core.ToolCallArgsEvent(tool_call_id=call, delta=json_of(arguments))
        yield core.ToolCallEndEvent(tool_call_id=call)

    def _result(self, event: StoredEvent) -> Iterator[core.BaseEvent]:
        """Yield the AG-UI events for the result of a call, and the end of its step after the last result.

        The call itself is sent first if that was not done. For a delegation, the end or the error of the subagent is
        sent. A result that the client sent itself, or that an earlier run has sent, is not sent again.
        """
        if event["id"] in self._settled:
            return
        yield from self._announce(event["id"], str(call_name(event)), {})
        name, text = self._names.of(event["id"]), content_text(event)
        if name in self._subagents:
            self._subagents.discard(name)
            yield from self._close_delegate_text(name)
            if event["status"] in SUCCESSES:
                yield core.SubagentFinishedEvent(subagent_run_id=name)
            else:
                yield core.SubagentErrorEvent(subagent_run_id=name, message=text, code=event["status"])
        id_ = result_id(name, self._given)
        # The client has its own results.
        if self._view.add_result(name, id_):
            yield core.ToolCallResultEvent(message_id=id_, tool_call_id=name, content=text, role="tool")
        self._wave.discard(event["id"])
        if not self._wave:
            yield from self._close_step()

    def _open_step(self, number: int, calls: Sequence[str]) -> Iterator[core.BaseEvent]:
        """Yield the end of the open step and the start of the step `number`, and record the calls, by id, whose results
        end it.
        """
        yield from self._close_step()
        self._step, self._wave = f"step {number}", set(calls)
        yield core.StepStartedEvent(step_name=self._step)

    def _open_subagent(self, id_: str, target: str) -> Iterator[core.BaseEvent]:
        """Yield the start of a delegation, unless it is open already.

        Args:
            id_: The model's id of the delegation's call.
            target: Name of the delegate.
        """
        name = self._names.of(id_)
        if name not in self._subagents:
            self._subagents.add(name)
            yield core.SubagentStartedEvent(
                subagent_run_id=name, name=target, parent_tool_call_id=name, parent_message_id=self._parent
            )

    def _delegate_text(self, name: str, text: str, message_id: str) -> Iterator[core.BaseEvent]:
        """Yield a piece of a delegate's streamed text. The snapshot at the end of the run does not contain it.

        Args:
            name: Name of the delegation's call. Nothing is yielded if the delegation is not open.
            text: The piece; nothing is yielded if it is empty.
            message_id: Id of the delegate's message.
        """
        if name not in self._subagents or not text:
            return
        # Delegates number their messages independently of each other.
        id_ = f"{name}-{message_id}"
        if self._delegate_texts.get(name) != id_:
            yield from self._close_delegate_text(name)
            self._delegate_texts[name] = id_
            yield core.TextMessageStartEvent(message_id=id_, role="assistant", subagent_run_id=name)
        yield core.TextMessageContentEvent(message_id=id_, delta=text, subagent_run_id=name)

    def _close_delegate_text(self, name: str) -> Iterator[core.BaseEvent]:
        """Yield the end of a delegation's open message, if there is one."""
        if (id_ := self._delegate_texts.pop(name, None)) is not None:
            yield core.TextMessageEndEvent(message_id=id_, subagent_run_id=name)

    def _close_messages(self) -> Iterator[core.BaseEvent]:
        """Yield the end of the open text message and of the open reasoning message, if there are any."""
        yield from self._close_text()
        yield from self._close_reasoning()

    def _close_text(self) -> Iterator[core.BaseEvent]:
        """Yield the end of the open text message, if there is one."""
        if self._text is not None:
            yield core.TextMessageEndEvent(message_id=self._text)
            self._text = None

    def _close_reasoning(self) -> Iterator[core.BaseEvent]:
        """Yield the ends of the open reasoning message, if there is one."""
        if self._reasoning is not None:
            yield core.ReasoningMessageEndEvent(message_id=self._reasoning)
            yield core.ReasoningEndEvent(message_id=self._reasoning)
            self._reasoning = None

    def _close_step(self) -> Iterator[core.BaseEvent]:
        """Yield the end of the open step, if there is one."""
        if self._step is not None:
            yield core.StepFinishedEvent(step_name=self._step)
            self._step, self._wave = None, set()

    def _close_subagents(self, waiting: Mapping[str, list[str]]) -> Iterator[core.BaseEvent]:
        """Yield the ends of the open delegations. One that waits is suspended; the others end with an error.

        Args:
            waiting: Name of a delegation that waits for an answer → ids of its AG-UI interrupts.
        """
        for name in sorted(self._subagents):
            yield from self._close_delegate_text(name)
            if name in waiting:
                outcome = core.SubagentFinishedSuspendedOutcome(interrupt_ids=waiting[name])
                yield core.SubagentFinishedEvent(subagent_run_id=name, outcome=outcome)
            else:
                yield core.SubagentErrorEvent(subagent_run_id=name, message=_STOPPED, code="stopped")
        self._subagents.clear()


def refused_run(ids: RunIds, problem: ProblemError) -> list[core.BaseEvent]:
    """Return the two events of a run that cannot start: its start, and the error."""
    return [
        core.RunStartedEvent(thread_id=ids.thread_id, run_id=ids.run_id),
        core.RunErrorEvent(message=problem.message, code=problem.kind),
    ]


def _settled(before: StateSnapshot) -> set[str]:
    """Return the ids of calls that have ended within the step which the session has not completed, so that their
    results are not in the history yet.
    """
    # LangGraph repeats the updates of a superstep's finished tasks when it resumes the others.
    found: set[str] = set()
    for task in before.tasks:
        events = task.result.get("events") if isinstance(task.result, Mapping) else None
        found |= {each["id"] for each in events or () if each["type"] in ("tool_result", "delegation_response")}
    return found


def _usage(state: StateSnapshot, before: Usage) -> list[core.TokenUsage] | None:
    """Return the usage of one run: that of its input minus `before`, what earlier runs have reported.

    None if the run has used no tokens, or no provider has reported any.
    """
    used: Usage = state.values.get("usage") or NO_USAGE
    if used["total_tokens"] <= before["total_tokens"]:
        return None
    return [
        core.TokenUsage(
            input_tokens=used["input_tokens"] - before["input_tokens"],
            output_tokens=used["output_tokens"] - before["output_tokens"],
            total_tokens=used["total_tokens"] - before["total_tokens"],
        )
    ]
