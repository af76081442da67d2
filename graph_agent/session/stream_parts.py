"""Converts LangGraph's stream chunks to the parts of a session's or a delegate's run.

A chunk is a stream mode with its payload. A part is an object that a consumer receives, such as `Token` or
`EventAdded`. Commentary is text that a model writes before it calls tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot, StreamMode

from graph_agent.base._compat import changes_in
from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import delegation_name
from graph_agent.base.history.call_events import call_name, is_progress, recorded_ids
from graph_agent.base.history.events import Event, StoredEvent, is_approval
from graph_agent.base.input_ids import InputId, input_id_in
from graph_agent.core.planning.update import EarlyEvents
from graph_agent.core.state.lengths import lengths_of
from graph_agent.core.state.messages import failure_of
from graph_agent.core.state.own_checkpoint import load
from graph_agent.models.message_gate import message_text
from graph_agent.session import results
from graph_agent.session.history import pending_events
from graph_agent.session.reply_buffer import NewText, ReplyBuffer

MODES: list[StreamMode] = ["messages", "custom", "updates"]
"""The stream modes from which parts are made."""

_DELEGATE_PROGRESS = {"type", "step", "id", "target", "content"}
_ANSWERING = ("finalize", "plan", "model")
"""Nodes of an agent whose text may be the answer."""
_CALLS = ("tool_call", "delegation_request")
_RESULTS = ("tool_result", "delegation_response")
_ENDS = (*_RESULTS, "delegation_progress", "approval_request", "approval_decision")
"""Possible types of the first event that a call's task stores at its end.

A delegate's progress is stored when the delegate has ended.
"""


async def parts_of_run(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    session_id: str,
    given: Any,
    mark: InputId | None,
    replies: ReplyBuffer | None,
) -> StreamParts:
    """Return the converter for the chunks of a run, which numbers events from the end of the session's history.

    The history is read only if the run resumes an input, or the newest checkpoint does not record its length.

    Args:
        graph: The compiled graph, whose newest checkpoint is read.
        session_id: Id of the session.
        given: The graph's input: a state update, or anything else to resume.
        mark: The mark of the input; None for an input without an id. If the newest checkpoint has the same mark, the
            run resumes that input with its calls that have no result.
        replies: The buffer with the text of the run's replies; None if LangGraph's message stream has it.
    """
    config: RunnableConfig = {"configurable": {"thread_id": session_id}}
    newest = await load(graph.checkpointer, config) if isinstance(graph.checkpointer, BaseCheckpointSaver) else None
    metadata: Mapping[str, Any] = newest.metadata if newest is not None else {}
    resumes = not isinstance(given, dict) or (mark is not None and input_id_in(metadata) == mark)
    if not resumes and (count := lengths_of(metadata).get("events")) is not None:
        return StreamParts(session_id, count, replies=replies)  # without reading the history
    values = (await graph.aget_state(config)).values
    # A run writes the events of calls that had finished again, in their final places.
    written = pending_events(newest) if newest is not None else []
    events: list[StoredEvent] = values.get("events", [])
    events = events[: len(events) - len(written)]
    answered = recorded_ids(events)
    running = [call["id"] for call in values.get("ready", ()) if resumes and call["id"] not in answered]
    return StreamParts(session_id, len(events), running, replies=replies)


def stored_parts(state: StateSnapshot, session_id: str) -> Iterator[results.ServedPart]:
    """Yield the parts of an input that has its result, from the state at its end.

    They are its events, each with the parts that follow from it, then the answer as one `Token`, unless it is empty.
    """
    events: Sequence[Any] = state.values.get("events", [])
    begin = results.input_at(events)
    parts = StreamParts(session_id, begin)
    for event in events[begin:]:
        yield from parts.take("updates", {"stored": {"events": [event]}})
    yield from parts.rest()
    if answer := text_of(results.stored_input(state).newest("agent_response").get("content", "")):
        yield results.Token(answer)


class StreamParts:
    """Converts the chunks of one run to parts.

    Args:
        session_id: Id of the session.
        seq: Index of the run's first event in the history.
        running: Ids of the calls that the run continues, in call order.
        is_agent: Whether the graph is an agent of this package, whose answer comes from certain nodes.
        replies: The buffer with the text of the run's replies; None if LangGraph's message stream has it.
        in_order: Whether events are in the order of the history. Otherwise the result of a call does not wait for those
            of the calls before it, and only early events have their `seq`.
    """

    def __init__(
        self,
        session_id: str,
        seq: int = 0,
        running: Sequence[str] = (),
        *,
        is_agent: bool = True,
        replies: ReplyBuffer | None = None,
        in_order: bool = True,
    ) -> None:
        self._session_id = session_id
        self._replies = replies
        self._in_order = in_order
        self._answer: AIMessage | None = None
        """The message with the answer in the newest update of the state; None if it has none."""
        self._is_replaced = False
        """Whether middleware or a hook has replaced the newest message after it was streamed."""
        self._order = _HistoryOrder(seq, running)
        self._is_agent = is_agent
        self._streamed: dict[str, list[str]] = {}
        """Message id → pieces of the message's text. The last message may be the answer; the others are commentary."""
        self._early = 0
        """Number of the superstep's events whose parts were made before its end."""
        self._reported: set[str] = set()
        """Ids of calls whose end was reported before the index of their event was final."""

    def take(self, mode: str, payload: Any) -> Iterable[results.ServedPart]:
        """Return the parts of one chunk of LangGraph's stream, after those of reply text that comes before it.

        `mode` is the stream mode of the chunk, and `payload` its content; a mode that this package does not use has no
        parts.
        """
        if self._replies is not None and (texts := self._replies.take_before(mode, payload)):
            return [*self._of_replies(texts), *self._of_chunk(mode, payload)]
        return self._of_chunk(mode, payload)

    def unread(self) -> Iterable[results.ServedPart]:
        """Yield the parts of reply text that `take` has not returned."""
        return self._of_replies(self._replies.take()) if self._replies is not None else ()

    def _of_replies(self, texts: Iterable[results.Token | results.Reasoning]) -> Iterator[results.ServedPart]:
        """Yield the parts of pieces of text and reasoning."""
        for text in texts:
            yield from self._token(text) if isinstance(text, results.Token) else (text,)

    def _of_chunk(self, mode: str, payload: Any) -> Iterable[results.ServedPart]:
        """Return the parts of one chunk itself; empty for an unknown mode.

        `mode` is LangGraph's stream mode. The state (mode `values`) is a part only if events are passed on in the order
        in which they arrive. Objects that a program writes to `custom` are passed on, but text that the reply buffer
        has is left out.
        """
        if mode == "messages":
            return self._tokens(*payload)
        if mode == "custom":
            if isinstance(payload, EarlyEvents):
                return self._early_events(payload)
            return () if isinstance(payload, NewText) else [_custom(payload)]
        if mode == "values" and not self._in_order:
            return [results.StateValues(payload)]
        return self._events(payload) if mode == "updates" else ()

    def rest(self) -> Iterator[results.ServedPart]:
        """Yield the parts that remain after the run: unread text, and events of finished calls that wait for those of
        an unfinished one.
        """
        yield from self.unread()
        yield from self._placed(self._order.rest())

    def _tokens(self, message: BaseMessage, metadata: Mapping[str, Any]) -> Sequence[results.RunPart]:
        """Return the parts of a message chunk of LangGraph's stream; empty unless it has text that may be the answer.

        Such a chunk is a message of a model; for an agent of this package, it comes from a node that answers.
        """
        answers = not self._is_agent or metadata.get("langgraph_node") in _ANSWERING
        # The same node also stores follow-ups, which are user messages. `isinstance` is slow for a subclass.
        if not answers or not isinstance(message, (AIMessageChunk, AIMessage)) or not (text := message_text(message)):
            return ()
        token = results.Token(text, reports_failure=failure_of(message) is not None, message_id=message.id or "")
        return self._token(token) if self._is_agent else (token,)

    def _token(self, token: results.Token) -> Sequence[results.RunPart]:
        """Return a token as parts. If it begins a message, the part that marks the message before it as commentary
        precedes it.
        """
        if (pieces := self._streamed.get(token.message_id)) is not None:
            pieces.append(token.text)
            return (token,)
        # Another message begins, so that the one before is not the answer.
        parts = (*self._commentary(), token)
        self._streamed[token.message_id] = [token.text]
        return parts

    def _commentary(self, plan: str = "") -> list[results.RunPart]:
        """Return the parts that mark the newest streamed message as commentary, and forget this message.

        `plan` is the text of the plan whose calls follow. If it begins with the streamed text, one part has the whole
        of `plan`; otherwise the streamed text and `plan` are a part each, without the empty ones.
        """
        message_id, pieces = self._streamed.popitem() if self._streamed else ("", [])
        self._is_replaced = False
        if not pieces or plan.startswith(streamed := "".join(pieces)):
            return [results.PlanText(plan, message_id=message_id)] if plan else []
        return [results.PlanText(streamed, message_id=message_id), *([results.PlanText(plan)] if plan else [])]

    def _rest_of_answer(self, answer: str) -> Iterator[results.RunPart]:
        """Yield the end of the answer that was not streamed, such as the reason why it was stopped.

        If none of the answer was streamed, or the streamed text was replaced, the whole answer is yielded in a message
        of its own. Nothing is yielded if the streamed text is no beginning of the answer.
        """
        stored = self._answer if self._replies is not None else None
        fails, id_ = stored is not None and failure_of(stored) is not None, (stored and stored.id) or ""
        if stored is not None and (self._is_replaced or id_ not in self._streamed):
            # The id of the replaced text belongs to another message of the stream.
            id_ = str(uuid4()) if self._is_replaced else id_
            yield from self._token(results.Token(answer, "token", fails, id_, is_from_model=False))
            return
        for message_id, pieces in list(self._streamed.items())[-1:]:
            if answer.startswith(streamed := "".join(pieces)) and answer != streamed:
                pieces.append(rest := answer.removeprefix(streamed))
                yield results.Token(rest, "token", fails, message_id, is_from_model=False)

    def _events(self, update: Mapping[str, Any]) -> Iterable[results.RunPart]:
        """Return the parts of the events in a chunk of the mode `updates`, except those that were reported early.

        Also records the answer in the update, if there is one, for `_rest_of_answer`.
        """
        changes = [*changes_in(update)]
        events = [event for change in changes for event in change.get("events") or () if is_event(event)]
        early, self._early = self._early, 0
        written = [change.get("messages") for change in changes]
        messages = [each for one in written for each in (one if isinstance(one, list) else [one])]
        replies = [message for message in messages if isinstance(message, AIMessage)]
        self._answer = next((reply for reply in reversed(replies) if not reply.tool_calls), None)
        planned = next((reply.id for reply in reversed(replies) if reply.tool_calls), None)
        return self._added(events[early:], planned or "")

    def _early_events(self, early: EarlyEvents) -> Iterator[results.RunPart]:
        """Return the parts of events that a node reports before its superstep ends."""
        before, self._early = self._early, len(early.events)
        if not self._in_order:
            self._order.seq = early.seq + before
        return self._added([*early.events[before:]], is_early=True)

    def _added(
        self, events: list[StoredEvent], message_id: str = "", *, is_early: bool = False
    ) -> Iterator[results.RunPart]:
        """Yield the parts of new events whose index in the history is final.

        For a result that must wait for its index, because a call before it has not ended, yields at once the state of
        its call. `message_id` is the id of the message that planned the calls, and `is_early` whether the events are
        reported before their superstep ends.
        """
        placed = self._order.add(events) if self._in_order else self._order.number(events)
        for event in events if self._in_order else ():
            if event["type"] in _RESULTS and not any(event is one for _, one in placed):
                # The event waits for those of the calls before it; a reader learns at once that the call has ended.
                self._reported.add(event["id"])
                yield _call_state(event)
        yield from self._placed(placed, message_id, is_early=is_early)

    def _placed(
        self, events: Iterable[tuple[int, StoredEvent]], message_id: str = "", *, is_early: bool = False
    ) -> Iterator[results.RunPart]:
        """Yield the parts of events whose index is final: `EventAdded`, then the parts that follow from the event.

        These are the state of a call that begins or ends, unless its end was reported early, and the commentary of a
        plan with calls. The end of an answer that was not streamed precedes its event. A warning with `commentary`
        marks the streamed text that it equals as replaced.

        Args:
            events: The events, each with its index in the history.
            message_id: Id of the message whose calls a plan among them has; empty if unknown.
            is_early: Whether the events are not stored yet.
        """
        for seq, event in events:
            if event["type"] == "warning" and (text := event.get("commentary")):
                self._is_replaced = any("".join(pieces) == text for pieces in [*self._streamed.values()][-1:])
            elif event["type"] == "agent_response":
                yield from self._rest_of_answer(text_of(event["content"]))
            has_calls = event["type"] == "plan" and bool(event["calls"])
            stored = cast("Event", {**event, "seq": seq, "session_id": self._session_id})
            yield results.EventAdded(stored, message_id=message_id if has_calls else "", is_early=is_early)
            if has_calls:
                yield from self._commentary(event["reasoning"])
            elif not self._in_order:
                continue  # a server shows calls by their events
            elif event["type"] not in _RESULTS:
                yield from _parts_of(event)
            elif event["id"] in self._reported:
                self._reported.discard(event["id"])
            else:
                yield _call_state(event)


def _call_state(result: StoredEvent) -> results.CallState:
    """Return the part for the end of a call, from the event of its result."""
    return results.CallState(result["id"], call_name(result) or "", result["status"])


class _HistoryOrder:
    """Sorts events into the order of the history, in which the results of one plan's calls are in call order, whichever
    call ended first.

    Args:
        seq: Index of the first event.
        running: Ids of the open calls, in call order.
    """

    def __init__(self, seq: int, running: Sequence[str] = ()) -> None:
        self.seq = seq
        """Index of the next event."""
        self._open: list[str] = [*running]
        self._early: dict[str, list[StoredEvent]] = {}

    def add(self, events: list[StoredEvent]) -> list[tuple[int, StoredEvent]]:
        """Add the events of one task; return the events whose index is final now, each with its index.

        Results are placed in the order of their calls, so those of a call that ends early are held back. A delegation
        that waits for a person loses its place to later calls.
        """
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
        return self.number(placed)

    def rest(self) -> list[tuple[int, StoredEvent]]:
        """Remove and return the events that still wait for those of an unfinished call, each with its final index."""
        placed = [event for id_ in self._open for event in self._early.pop(id_, [])]
        return self.number(placed)

    def number(self, placed: list[StoredEvent]) -> list[tuple[int, StoredEvent]]:
        """Return events, each with the next free index."""
        first = self.seq
        self.seq += len(placed)
        return list(enumerate(placed, first))


def _ending_call(first: StoredEvent) -> str:
    """Return the id of the call whose task has stored events that begin with `first`; empty if they are not of a call.

    For an approval that a delegate asks for, it is the id of the delegation; for one by middleware, that of the first
    call.
    """
    if not is_approval(first):
        return str(first.get("id", ""))
    if "middleware" in first and "calls" in first:
        return str(first["calls"][0]["id"])
    return str(first.get("delegation", ""))


def _custom(payload: Any) -> results.RunPart:
    """Convert an object of the custom stream to a part; one that is not of this package becomes a `Custom`.

    Objects of this package are recognized by their type or their exact keys.
    """
    if isinstance(payload, results.DelegatePart):
        return payload
    if is_progress(payload):
        return results.Progress(payload["step"], payload["action"], payload["target"])
    if isinstance(payload, dict) and payload.keys() == _DELEGATE_PROGRESS and payload["type"] == "delegation_progress":
        return results.DelegateProgress(payload["id"], payload["target"], payload["content"])
    return results.Custom(payload)


def is_event(value: Any) -> bool:
    """Return whether a value is an event of this package, by its keys `type`, `ts` and `step`; their values are not
    checked. Other graphs may have a state field `events`, too.
    """
    return isinstance(value, dict) and {"type", "ts", "step"} <= value.keys()


def _parts_of(event: StoredEvent) -> list[results.RunPart]:
    """Return the part that reports that a call is about to run, in a list; empty for other events and for refused
    calls.
    """
    match event["type"]:
        case "tool_call" | "delegation_request" if "refused" in event:
            return []
        case "tool_call":
            return [results.CallState(event["id"], event["name"], "started")]
        case "delegation_request":
            return [results.CallState(event["id"], delegation_name(event["target"]), "started")]
        case _:
            return []
