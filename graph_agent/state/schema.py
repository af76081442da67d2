"""The state schemas and channels; every value in a checkpoint is plain JSON or a LangChain message."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, NotRequired, Self

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, BaseMessageChunk, RemoveMessage
from langgraph.channels import DeltaChannel, EphemeralValue, LastValue
from langgraph.checkpoint.base import PendingWrite
from langgraph.errors import InvalidUpdateError
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.managed import RemainingSteps
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from graph_agent._compat import messages_delta_reducer
from graph_agent._compat.deltas import let_channels_decide_on_copies
from graph_agent.approvals.requests import HeldCall
from graph_agent.events.calls import Handoff
from graph_agent.events.types import StoredEvent, append_events, event
from graph_agent.models.usage import add_usage
from graph_agent.state.remote import RemoteState, change_remote
from graph_agent.types import Call, SessionStatus, StopReason, Usage

let_channels_decide_on_copies()

ENDED = frozenset(SessionStatus) - {SessionStatus.CREATED, SessionStatus.RUNNING}
"""The statuses in which an input can end; new input changes each to `RUNNING`."""

NEXT: dict[SessionStatus, frozenset[SessionStatus]] = {
    SessionStatus.CREATED: frozenset({SessionStatus.RUNNING}),
    SessionStatus.RUNNING: ENDED,
    **{ended: frozenset({SessionStatus.RUNNING}) for ended in ENDED},
}
"""Status → allowed next statuses."""


SNAPSHOT_EVERY = 1000
"""Minimum number of updates between two full copies of a delta channel; see `GrowingDelta`."""
_MOST_STEPS = 10_000
"""Maximum supersteps between two full copies: LangGraph's SQLite saver reads them by one query with a parameter for
each and for both delta channels, and SQLite's default maximum is 32,766 parameters."""
_ID = attrgetter("id")


def status_event(before: str, after: str, step: int) -> StoredEvent:
    """Return the `status` event of a transition.

    Args:
        before: The current status.
        after: The new status.
        step: The step of the transition.

    Raises:
        InvalidUpdateError: If the transition is not allowed.
    """
    check_change(before, after)
    return event("status", step, **{"from": str(before), "to": str(after)})


def check_change(before: str, after: str) -> None:
    """Refuse a transition that is not in `NEXT`.

    Raises:
        InvalidUpdateError: With both statuses and the allowed ones.
    """
    try:
        allowed = NEXT[SessionStatus(before)]
        known = SessionStatus(after)
    except ValueError:
        raise InvalidUpdateError(f"{after!r} is no session status; known: {', '.join(SessionStatus)}.") from None
    if known not in allowed:
        raise InvalidUpdateError(
            f"A session that is {before} cannot become {after}; it can become {', '.join(sorted(allowed))}."
        )


class StatusChannel(LastValue[str]):
    """Holds the status and refuses invalid transitions; a write of the current status is allowed."""

    def update(self, values: Sequence[Any]) -> bool:
        """Set the new status; return whether there was a write.

        Raises:
            InvalidUpdateError: For a transition that is not allowed.
        """
        for value in values:
            before = self.value if self.is_available() else SessionStatus.CREATED
            if value != before:
                check_change(before, value)
        return super().update(values)


class GrowingDelta(DeltaChannel[list[Any]]):
    """A delta channel of a list that writes a full copy after the list has doubled, and at least every `_MOST_STEPS`.

    LangGraph's own rule is a fixed number of updates, with which the copies soon take more space than the updates.
    """

    copied = 0
    """Length of the list in the last full copy before the run; 0 before the first."""

    def copy(self) -> Self:
        """Return a channel that shares the list, which is never modified in place."""
        new = self.__class__(self.reducer, self.typ, snapshot_frequency=self.snapshot_frequency)
        new.key, new.value, new.copied = self.key, self.value, self.copied
        return new

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Restore the channel from a full copy."""
        new = super().from_checkpoint(checkpoint)
        new.copied = len(new.value)
        return new

    def is_copy_due(self, updates: int, supersteps: int) -> bool:
        """Whether to write a full copy now.

        LangGraph asks several times about one copy, so the answer changes nothing. After a copy, `updates` begins at 0.

        Args:
            updates: Number of updates since the last full copy.
            supersteps: Number of supersteps since then.
        """
        if not self.is_available():
            return False
        has_doubled = updates >= self.snapshot_frequency and len(self.value) >= 2 * self.copied
        return has_doubled or supersteps >= _MOST_STEPS


class MessagesChannel(GrowingDelta):
    """The delta channel of ``messages``: add, replace by id, remove by id, and remove all.

    LangGraph's delta reducer ignores ``REMOVE_ALL_MESSAGES`` and indexes the whole history at each write. The channel
    keeps it as its reducer because LangGraph assigns message ids only if it is set (see ``_compat``).
    """

    def __init__(
        self,
        reducer: Any = messages_delta_reducer,
        typ: type[list[AnyMessage]] | None = None,
        *,
        snapshot_frequency: int = SNAPSHOT_EVERY,
    ) -> None:
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)
        self._ids: tuple[Any, set[str | None]] = (None, set())
        """A history and the ids in it, so that a write does not read the whole history."""

    def update(self, values: Sequence[Any]) -> bool:
        """Apply one superstep's writes to the history; return whether there were any."""
        if isinstance(self.value, list) and (new := self._only_new(self.value, values)) is not None:
            if new:
                self.value = [*self.value, *new]
                self._ids[1].update(map(_ID, new))
                self._ids = self.value, self._ids[1]
            return bool(values)
        return super().update(_resets(values))

    def _only_new(self, state: list[AnyMessage], values: Sequence[Any]) -> list[AnyMessage] | None:
        """Return the written messages if all are new; None if the reducer must apply them."""
        new: list[Any] = []
        for value in values:
            new.extend(value) if isinstance(value, list) else new.append(value)
        if not new:
            return new
        ids = set()
        for message in new:
            if not isinstance(message, BaseMessage) or isinstance(message, BaseMessageChunk | RemoveMessage):
                return None
            ids.add(message.id)
        if self._ids[0] is not state:
            self._ids = state, set(map(_ID, state))
        if None in ids or len(ids) != len(new) or not ids.isdisjoint(self._ids[1]):
            return None
        return new

    def replay_writes(self, writes: Sequence[PendingWrite]) -> None:
        """Rebuild the history from stored writes, oldest first."""
        values = _resets([value for _, _, value in writes], live=False)
        super().replay_writes([("", self.key, value) for value in values])


def _resets(values: Sequence[Any], *, live: bool = True) -> list[Any]:
    """Replace each "remove all" by an `Overwrite` with the messages after it, which the base channel supports."""
    folded: list[Any] = []
    for value in values:
        items = value if isinstance(value, list) else [value]
        cut = max((i for i, item in enumerate(items) if _removes_all(item)), default=None)
        if cut is None:
            folded.append(value)
            continue
        if live:
            # Within a superstep the base channel keeps only an overwrite, so earlier writes are dropped.
            folded.clear()
        folded.append(Overwrite(messages_delta_reducer([], [items[cut + 1 :]])))
    if live and len(folded) > 1 and isinstance(folded[0], Overwrite):
        return [Overwrite(messages_delta_reducer(folded[0].value, folded[1:]))]
    return folded


def _removes_all(item: Any) -> bool:
    return isinstance(item, RemoveMessage) and item.id == REMOVE_ALL_MESSAGES


class LoopOutcome(TypedDict):
    """The reason planning ended, passed from ``plan`` to ``finalize``."""

    stop_reason: StopReason
    limit: NotRequired[float]
    """The value of the limit that was reached; absent for none."""
    limit_name: NotRequired[str]
    """The limit's name, if it differs from the stop reason; see `RECURSION_LIMIT`."""
    draft: NotRequired[AIMessage]
    """The answer, if planning produced it; the streamed part, if planning was interrupted."""
    shown: NotRequired[bool]
    """Whether the draft has been streamed; absent for False."""
    unguarded: NotRequired[bool]
    """Whether the draft has not passed hooks and middleware; absent for False."""
    unfit: NotRequired[bool]
    """Whether the planning reply was streamed and does not match the response format; absent for False."""
    empty: NotRequired[bool]
    """Whether the reply meant as answer was empty, so the model is asked once more; absent for False."""
    composed: NotRequired[bool]
    """Whether the draft is the whole answer, in the history already; absent for False."""
    failed: NotRequired[bool]
    """Whether the request for the answer failed, so that the draft is its streamed part; absent for False."""
    handoffs: NotRequired[list[Handoff]]
    """Commands to the parent graph that end the input without an answer; absent for none."""


class Recovery(TypedDict, total=False):
    """Measures taken for one input so that a model answers."""

    fallback: int
    """Index of the model in use: 0 or absent for the first, from 1 for the fallbacks."""
    compacted: bool
    """A warning was emitted that requests omit the older part of the history."""
    unsummarized: bool
    """A summary failed, so that none is requested again."""
    cut: bool
    """A warning was emitted that requests truncate results further."""
    too_long: int
    """Estimated tokens of the shortest request that the model in use refused as too long; absent for none."""
    crowded: bool
    """A warning was emitted that the model's context window is nearly full."""
    asked_in_text: bool
    """A planning request was repeated with tools in text, because the reply indicated that tools are ignored."""
    free_choice: bool
    """A warning was emitted that the tool requested by the caller's tool choice is withheld."""


class Summary(TypedDict):
    """The summary that requests hold in place of the older messages."""

    event: int
    """Index of its `summary` event in the history."""
    kept_from: str
    """Id of the first message that requests contain after it."""
    inputs: list[tuple[int, str]]
    """Position and id of each message before `kept_from` that belongs to the input of that time; requests keep them
    until the next input."""
    at: int
    """Number of messages when it was made."""


class HookWork(TypedDict):
    """Actions of loop hooks for one input, which count towards their limits."""

    reruns: int
    """Number of reruns of the model."""
    calls: list[str]
    """Fingerprints of the replies replaced by reruns; a reply without calls has none."""
    ended: list[int]
    """Indices of the agent's hooks whose rerun was refused; they have no more reruns."""


class Carried(TypedDict):
    """Messages that are part of requests but not of the history."""

    at: int
    """Number of history messages before them."""
    messages: list[AnyMessage]


class Bookkeeping(TypedDict):
    """Position of the loop. It is one state field because each field adds bytes to every checkpoint."""

    step: int
    """Plans made for this input; 0 at its start."""
    waves: int
    """Waves run for this input; 0 at its start."""
    turn: int
    """Phase-1 model calls of the session; 0 at its start."""
    last_input_id: str
    """Id of the newest user message whose event is written; empty before the first."""
    text_tools: list[str]
    """Models whose provider refused tools, so that this session calls tools in text; empty for none."""
    native_tools: NotRequired[list[str]]
    """Models with a native tool call so far whose profile does not declare tool calling; absent for none."""
    outcome: LoopOutcome | None
    """The reason planning ended; None during planning."""
    events_before: NotRequired[int]
    """Number of events when the newest plan was begun, so that readers can number the newest events; absent before."""
    waiting: list[Call]
    """Calls of the wave that wait for others; empty outside structured planning."""
    last_wave: bool
    """Whether the model declared this wave the last one."""
    asked: NotRequired[list[HeldCall]]
    """Calls of the wave on which a person is asked to decide; `waiting` contains them too. Absent for none."""
    approve: NotRequired[list[str]]
    """Approval patterns of this input's context, which also count when it is resumed without them; absent for none."""
    taken: NotRequired[list[str]]
    """Keys of processed notes that may still be in the inbox; absent for none."""
    changed: NotRequired[dict[str, Any]]
    """Configuration fields changed during the session; absent for none."""
    worked_s: NotRequired[float]
    """Seconds spent on this input up to the last step; only with a deadline."""
    loops: NotRequired[dict[str, int]]
    """Pattern of calls → number of repetitions with equal results in this input; absent for none."""
    withheld: NotRequired[list[str]]
    """Tools not offered until the next input because their calls and results repeated; absent for none."""
    unchanging: NotRequired[list[str]]
    """Tools reported in this input for equal results under different arguments; absent for none."""
    ledger: NotRequired[bool]
    """Whether the effect ledger records each writing call of the wave before it runs; absent for False."""
    recovery: NotRequired[Recovery]
    """Measures taken so far for this input's requests; absent at its start."""
    carried: NotRequired[list[Carried]]
    """Messages that hooks add to requests for the rest of this input; absent or empty for none."""
    hooks: NotRequired[HookWork]
    """Actions of hooks for this input; absent for none."""
    ask: NotRequired[Literal["agent", "model", "review"]]
    """Where `plan` leads an agent with hooks: `before_agent`, `before_model`, `after_model`; absent for elsewhere."""
    reply: NotRequired[str]
    """Id of the model's reply that hooks see now; empty for a request without one, absent if none was made."""
    summary: NotRequired[Summary]
    """The summary in force; absent before the first."""
    kept_from: NotRequired[str]
    """Id of the first message that requests contain in full; absent if they contain all."""
    cuts: NotRequired[dict[str, int]]
    """Id of a result's message → characters of it in requests; absent if no result is truncated further."""


INITIAL_BOOKKEEPING: Bookkeeping = {
    "step": 0,
    "waves": 0,
    "turn": 0,
    "last_input_id": "",
    "text_tools": [],
    "outcome": None,
    "waiting": [],
    "last_wave": False,
}


class AgentInput(TypedDict):
    """Input of a run."""

    messages: Annotated[list[AnyMessage], MessagesChannel()]
    """New messages, usually one from the user, in any form that LangChain accepts as a message."""


class AgentOutput(TypedDict, total=False):
    """Output of a run."""

    messages: Annotated[list[AnyMessage], MessagesChannel()]
    """The whole conversation."""
    status: Annotated[str, StatusChannel]
    """A `SessionStatus`; absent before the first input. Invalid transitions are refused."""
    stop_reason: str | None
    """A `StopReason`; None during a run."""
    structured_response: Any
    """The answer as plain JSON per ``response_format``; None without a response format or if extraction failed."""


class AgentState(AgentOutput, total=False):
    """All fields of a checkpoint."""

    events: Annotated[list[StoredEvent], GrowingDelta(append_events, snapshot_frequency=SNAPSHOT_EVERY)]
    """The history; empty before the first input. `SessionMemory` reads it."""
    loop: Bookkeeping
    """Position of the loop; absent before the first input."""
    ready: list[Call]
    """The calls to run next; empty after planning."""
    usage: Annotated[Usage, add_usage]
    """Tokens and model calls of this input; zeros at its start."""
    remote: Annotated[RemoteState | None, change_remote]
    """Tasks and conversations that other agents hold for this session; absent before the first."""
    arrived: Annotated[bool, EphemeralValue(bool, guard=False)]
    """True only in the superstep after a wave; it distinguishes a continued run from new input."""


class PlanState(AgentState, total=False):
    """Input of ``plan``: the state and the number of supersteps that LangGraph still allows."""

    remaining_steps: RemainingSteps
