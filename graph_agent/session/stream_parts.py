"""Converts LangGraph's stream chunks to the parts of a session's or a delegate's run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot, StreamMode

from graph_agent.base._compat import changes_in
from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import delegation_name
from graph_agent.base.input_ids import InputId, input_id_in
from graph_agent.core.runs.own_checkpoint import load
from graph_agent.core.runs.run import EarlyEvents
from graph_agent.core.state.call_events import call_name, is_progress, recorded_ids
from graph_agent.core.state.events import Event, StoredEvent, is_approval
from graph_agent.core.state.lengths import lengths_of
from graph_agent.core.state.messages import failure_of
from graph_agent.models.message_gate import message_text
from graph_agent.session.history import pending_events
from graph_agent.session.results import (
    CallState,
    Custom,
    DelegatePart,
    DelegateProgress,
    EventAdded,
    PlanText,
    Progress,
    RunPart,
    Token,
    input_at,
    run_result,
)

MODES: list[StreamMode] = ["messages", "custom", "updates"]
"""The stream modes that parts are made from."""

_DELEGATE_PROGRESS = {"type", "step", "id", "target", "content"}
_ANSWERING = ("finalize", "plan", "model")
_CALLS = ("tool_call", "delegation_request")
_RESULTS = ("tool_result", "delegation_response")
_ENDS = (*_RESULTS, "delegation_progress", "approval_request", "approval_decision")
"""Possible types of the first event of a call's task; a delegate's progress is added when the delegate has ended."""


async def parts_of_run(
    graph: CompiledStateGraph[Any, Any, Any, Any], session_id: str, given: Any, mark: InputId | None
) -> StreamParts:
    """Return the converter of a run's chunks; a run that resumes continues the calls without a result."""
    config: RunnableConfig = {"configurable": {"thread_id": session_id}}
    newest = await load(graph.checkpointer, config) if isinstance(graph.checkpointer, BaseCheckpointSaver) else None
    metadata: Mapping[str, Any] = newest.metadata if newest is not None else {}
    resumes = not isinstance(given, dict) or (mark is not None and input_id_in(metadata) == mark)
    if not resumes and (count := lengths_of(metadata).get("events")) is not None:
        return StreamParts(session_id, count)  # without reading the history
    values = (await graph.aget_state(config)).values
    # A run writes the events of calls that had finished again, in their final places.
    written = pending_events(newest) if newest is not None else []
    events: list[StoredEvent] = values.get("events", [])
    events = events[: len(events) - len(written)]
    answered = recorded_ids(events)
    running = [call["id"] for call in values.get("ready", ()) if resumes and call["id"] not in answered]
    return StreamParts(session_id, len(events), running)


def stored_parts(state: StateSnapshot, session_id: str) -> Iterator[RunPart]:
    """Yield the parts of an input that has its result, from its last state: its events, and the answer as one piece."""
    events: Sequence[Any] = state.values.get("events", [])
    begin = input_at(events)
    parts = StreamParts(session_id, begin)
    for event in events[begin:]:
        yield from parts.take("updates", {"stored": {"events": [event]}})
    yield from parts.rest()
    if answer := run_result(state).answer:
        yield Token(answer)


class StreamParts:
    """Makes the parts of one run, whose first event has the index `seq`, from its chunks.

    `running` are ids of the calls that it continues, in call order. Of an agent of this package, the answer comes from
    certain nodes.
    """

    def __init__(self, session_id: str, seq: int = 0, running: Sequence[str] = (), *, is_agent: bool = True) -> None:
        self._session_id = session_id
        self._order = _HistoryOrder(seq, running)
        self._is_agent = is_agent
        self._streamed: dict[str, list[str]] = {}
        """Message id → the text of its tokens; the last message may be the answer, the others are commentary."""
        self._early = 0
        """Number of the superstep's events whose parts were made before the superstep ended."""
        self._reported: set[str] = set()
        """Ids of the calls whose end was reported before their event had its place."""

    def take(self, mode: str, payload: Any) -> Iterable[RunPart]:
        """Return the parts of one chunk; a mode that is not in `MODES` yields none."""
        if mode == "messages":
            return self._tokens(*payload)
        if mode == "custom" and isinstance(payload, EarlyEvents):
            early, self._early = self._early, len(payload.events)
            return self._added([*payload.events[early:]])
        if mode == "custom":
            return [_custom(payload)]
        return self._events(payload) if mode == "updates" else ()

    def rest(self) -> Iterator[RunPart]:
        """Return the parts of finished calls that come after a call that has not finished; call it after the run."""
        yield from self._placed(self._order.rest())

    def _tokens(self, message: BaseMessage, metadata: Mapping[str, Any]) -> Sequence[RunPart]:
        answers = not self._is_agent or metadata.get("langgraph_node") in _ANSWERING
        # The same node also stores follow-ups, which are user messages. `isinstance` is slow for a subclass.
        if not answers or not isinstance(message, (AIMessageChunk, AIMessage)) or not (text := message_text(message)):
            return ()
        token = Token(text, reports_failure=failure_of(message) is not None, message_id=message.id or "")
        if not self._is_agent:
            return (token,)
        if (pieces := self._streamed.get(token.message_id)) is not None:
            pieces.append(text)
            return (token,)
        # Another message begins, so that the one before is not the answer.
        parts = (*self._commentary(), token)
        self._streamed[token.message_id] = [text]
        return parts

    def _commentary(self, plan: str = "") -> list[RunPart]:
        """Return the part that marks the newest message as commentary, as the text of a plan if there is one."""
        message_id, pieces = self._streamed.popitem() if self._streamed else ("", [])
        if not pieces or plan.startswith(streamed := "".join(pieces)):
            return [PlanText(plan, message_id=message_id)] if plan else []
        return [PlanText(streamed, message_id=message_id), *([PlanText(plan)] if plan else [])]

    def _rest_of_answer(self, answer: str) -> Iterator[RunPart]:
        """Yield the end of the answer that its tokens do not have, such as the reason why it was stopped."""
        for message_id, pieces in list(self._streamed.items())[-1:]:
            if answer.startswith(streamed := "".join(pieces)) and answer != streamed:
                pieces.append(rest := answer.removeprefix(streamed))
                yield Token(rest, message_id=message_id)

    def _events(self, update: Mapping[str, Any]) -> Iterable[RunPart]:
        changes = [change.get("events") or () for change in changes_in(update)]
        events = [event for added in changes for event in added if is_event(event)]
        early, self._early = self._early, 0
        return self._added(events[early:])

    def _added(self, events: list[StoredEvent]) -> Iterator[RunPart]:
        placed = self._order.add(events)
        for event in events:
            if event["type"] in _RESULTS and not any(event is one for _, one in placed):
                # The event waits for those of the calls before it; a reader learns at once that the call has ended.
                self._reported.add(event["id"])
                yield _call_state(event)
        yield from self._placed(placed)

    def _placed(self, events: Iterable[tuple[int, StoredEvent]]) -> Iterator[RunPart]:
        for seq, event in events:
            if event["type"] == "agent_response":
                yield from self._rest_of_answer(text_of(event["content"]))
            yield EventAdded(cast("Event", {**event, "seq": seq, "session_id": self._session_id}))
            if event["type"] == "plan" and event["calls"]:
                yield from self._commentary(event["reasoning"])
            elif event["type"] not in _RESULTS:
                yield from _parts_of(event)
            elif event["id"] in self._reported:
                self._reported.discard(event["id"])
            else:
                yield _call_state(event)


def _call_state(result: StoredEvent) -> CallState:
    return CallState(result["id"], call_name(result) or "", result["status"])


class _HistoryOrder:
    """Sorts events into the order of the history: a wave's results in call order, whichever finished first."""

    def __init__(self, seq: int, running: Sequence[str] = ()) -> None:
        self._seq = seq
        self._open: list[str] = [*running]
        self._early: dict[str, list[StoredEvent]] = {}

    def add(self, events: list[StoredEvent]) -> list[tuple[int, StoredEvent]]:
        """Add one task's events; return the events whose place is now final, each with its index."""
        placed: list[StoredEvent] = []
        id_ = _ending_call(events[0]) if events else ""
        if events and events[0]["type"] in _ENDS and id_ in self._open:
            self._early[id_] = events
            while self._open and self._open[0] in self._early:
                placed += self._early.pop(self._open.pop(0))
            if events[-1]["type"] not in _RESULTS:
                # The delegation waits for a person, and a later task has its result.
                self._open.append(id_)
        else:
            placed = events
        for event in events:
            if event["type"] in _CALLS:
                self._open.append(event["id"])
        return self._numbered(placed)

    def rest(self) -> list[tuple[int, StoredEvent]]:
        """Return the events that wait for those of an unfinished call, each with its index."""
        placed = [event for id_ in self._open for event in self._early.pop(id_, [])]
        return self._numbered(placed)

    def _numbered(self, placed: list[StoredEvent]) -> list[tuple[int, StoredEvent]]:
        first = self._seq
        self._seq += len(placed)
        return list(enumerate(placed, first))


def _ending_call(first: StoredEvent) -> str:
    """Return the id of the call whose task ends with these events; empty for other events."""
    if not is_approval(first):
        return str(first.get("id", ""))
    if "middleware" in first and "calls" in first:
        return str(first["calls"][0]["id"])
    return str(first.get("delegation", ""))


def _custom(payload: Any) -> RunPart:
    """Convert an object of the custom stream; the loop's own are recognized by their exact keys."""
    if isinstance(payload, DelegatePart):
        return payload
    if is_progress(payload):
        return Progress(payload["step"], payload["action"], payload["target"])
    if isinstance(payload, dict) and payload.keys() == _DELEGATE_PROGRESS and payload["type"] == "delegation_progress":
        return DelegateProgress(payload["id"], payload["target"], payload["content"])
    return Custom(payload)


def is_event(value: Any) -> bool:
    """Whether a value is an event of this package: other graphs may have a state field `events`, too."""
    return isinstance(value, dict) and {"type", "ts", "step"} <= value.keys()


def _parts_of(event: StoredEvent) -> list[RunPart]:
    match event["type"]:
        case "tool_call" | "delegation_request" if "refused" in event:
            return []
        case "tool_call":
            return [CallState(event["id"], event["name"], "started")]
        case "delegation_request":
            return [CallState(event["id"], delegation_name(event["target"]), "started")]
        case _:
            return []
