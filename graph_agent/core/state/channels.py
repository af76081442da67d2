"""Defines the channels of the state: the status with its transitions, and growing lists stored as deltas.

A delta channel stores each superstep's writes, and only now and then a full copy of the list; reading a session replays
the writes since the newest copy. `remote` holds tasks of delegates: agents that this one hands tasks to.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from operator import attrgetter
from typing import Any, NotRequired, Self, cast

from langchain_core.messages import AnyMessage, BaseMessage, BaseMessageChunk, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel, LastValue
from langgraph.checkpoint.base import PendingWrite
from langgraph.errors import InvalidUpdateError
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from graph_agent.base._compat import index_pending_writes, messages_delta_reducer
from graph_agent.base._compat.checkpoints import let_channels_decide_on_copies
from graph_agent.base.delegate_tasks import BackgroundTask, RemoteTask
from graph_agent.base.history.call_events import Handoff
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.types import SessionStatus
from graph_agent.core.state.lengths import CheckedWrites, add_length

# At import, before any graph with these channels is compiled.
let_channels_decide_on_copies(add_length)
index_pending_writes()

ENDED_STATUSES = frozenset(SessionStatus) - {SessionStatus.CREATED, SessionStatus.RUNNING}
"""The statuses in which an input can end; new input changes each to `RUNNING`."""

NEXT: dict[SessionStatus, frozenset[SessionStatus]] = {
    SessionStatus.CREATED: frozenset({SessionStatus.RUNNING}),
    SessionStatus.RUNNING: ENDED_STATUSES,
    **{ended: frozenset({SessionStatus.RUNNING}) for ended in ENDED_STATUSES},
}
"""Status → allowed next statuses."""


SNAPSHOT_EVERY = 1000
"""Minimum number of updates between two full copies of a delta channel; see `GrowingDelta`."""
_MOST_STEPS = 10_000
"""Maximum supersteps between two full copies: LangGraph's SQLite saver reads them by one query with a parameter for
each and for both delta channels, and SQLite's default maximum is 32,766 parameters."""
_ID = attrgetter("id")


def status_event(before: str, after: str, step: int) -> StoredEvent:
    """Return the `status` event for a change of the session's status.

    Args:
        before: The present status.
        after: The new status.
        step: Number of the plan for the event; 0 before the first plan.

    Raises:
        InvalidUpdateError: The change is not in `NEXT`, also one to the present status.
    """
    check_change(before, after)
    return event("status", step, **{"from": str(before), "to": str(after)})


def check_change(before: str, after: str) -> None:
    """Raise `InvalidUpdateError` for a transition of the session's status that is not in `NEXT`, or an unknown status.

    The message names the allowed or the known statuses.
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
    """Holds the session's status and refuses invalid transitions; writing the current status is allowed."""

    def update(self, values: Sequence[Any]) -> bool:
        """Apply one superstep's writes in order, and return whether there were any. Writing the present status changes
        nothing.

        Raises `InvalidUpdateError` if a transition is not allowed. The status before the first write is `CREATED`.
        """
        before = self.value if self.is_available() else SessionStatus.CREATED
        for value in values:
            if value != before:
                check_change(before, value)
            before = value
        # LangGraph's channel refuses two writes in one superstep, as of a node and an update by a person.
        return super().update(values[-1:])


class GrowingDelta(DeltaChannel[list[Any]]):
    """A delta channel of a list that writes a full copy once the list has doubled, or after `_MOST_STEPS` supersteps.

    LangGraph's own rule is a fixed number of updates, with which the copies soon take more space than the updates.
    """

    copied = 0
    """Length of the list in the last full copy before this run; 0 if there was none."""

    def copy(self) -> Self:
        """Return a channel that shares the list, which no channel modifies in place."""
        # LangGraph's own copy would copy the list, which grows with the session.
        new = self.__class__(self.reducer, self.typ, snapshot_frequency=self.snapshot_frequency)
        new.key, new.value, new.copied = self.key, self.value, self.copied
        return new

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Return a channel with the list of a full copy."""
        new = super().from_checkpoint(checkpoint)
        new.copied = len(new.value)
        return new

    def replay_writes(self, writes: Sequence[PendingWrite]) -> None:
        """Rebuild the list from stored writes, oldest first; raise `DamagedSessionError` if some entries are
        missing."""
        values = [value for _, _, value in writes]
        if values and all(type(value) is list for value in values):
            self.value = self.reducer(self.value, values)  # a list is no `Overwrite`, for which LangGraph searches
        else:
            super().replay_writes(writes)
        self._check(writes)

    def _check(self, writes: Sequence[PendingWrite]) -> None:
        """Compare the number of rebuilt entries with the stored one, if known; raise `DamagedSessionError` if some are
        missing."""
        if isinstance(writes, CheckedWrites):
            writes.check(len(self.value) if self.is_available() else 0)

    def is_copy_due(self, updates: int, supersteps: int) -> bool:
        """Whether to write a full copy now. The answer changes nothing, as LangGraph asks several times about one copy.

        True if the list has at least doubled since the last copy, after `snapshot_frequency` updates or more, and after
        `_MOST_STEPS` supersteps in any case; False without a list.

        Args:
            updates: Updates since the last full copy; 0 right after one.
            supersteps: Supersteps since the last full copy.
        """
        if not self.is_available():
            return False
        has_doubled = updates >= self.snapshot_frequency and len(self.value) >= 2 * self.copied
        return has_doubled or supersteps >= _MOST_STEPS


@lru_cache(maxsize=128)
def _is_appended(kind: type) -> bool:
    """Whether values of a class are messages that can just be appended, as opposed to chunks and removals."""
    return issubclass(kind, BaseMessage) and not issubclass(kind, BaseMessageChunk | RemoveMessage)


class MessagesChannel(GrowingDelta):
    """The delta channel of ``messages``: appends messages, replaces and removes them by id, and removes all.

    LangGraph's delta reducer ignores ``REMOVE_ALL_MESSAGES`` and indexes the whole history at each write; this channel
    replaces both where it can. It keeps that reducer because LangGraph assigns message ids only if it is set (see
    ``_compat``).
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
        """A history and the set of ids in it, so that a write does not read the whole history."""

    def update(self, values: Sequence[Any]) -> bool:
        """Apply one superstep's writes to the history, and return whether there were any."""
        return bool(values) if self._append_new(values) else super().update(_resets(values))

    def _append_new(self, values: Sequence[Any]) -> bool:
        """Append the written messages and return True if all have new ids; otherwise change nothing and return False.
        Without any messages, nothing changes and the result is True.
        """
        if not isinstance(self.value, list):
            return False
        new: list[Any] = []
        for value in values:
            new.extend(value) if isinstance(value, list) else new.append(value)
        if new:
            if (ids := self._new_ids(self.value, new)) is None:
                return False
            self.value = [*self.value, *new]
            self._ids[1].update(ids)
            self._ids = self.value, self._ids[1]
        return True

    def _new_ids(self, state: list[AnyMessage], new: list[Any]) -> set[Any] | None:
        """Return the ids of written messages if each can just be appended; None if the reducer must apply the write.

        The reducer is needed for removals, message chunks, values that are no messages, and ids that are missing or
        taken.

        Args:
            state: The present history.
            new: The written values.
        """
        # A session's whole history comes through here when it is read, so that nothing is done for each message.
        if not all(map(_is_appended, {*map(type, new)})):
            return None
        ids = {*map(_ID, new)}
        if self._ids[0] is not state:
            self._ids = state, {*map(_ID, state)}
        # Only messages with new ids can be appended without comparing them with the history.
        if None in ids or len(ids) != len(new) or not ids.isdisjoint(self._ids[1]):
            return None
        return ids

    def replay_writes(self, writes: Sequence[PendingWrite]) -> None:
        """Rebuild the history from stored writes, oldest first; raise `DamagedSessionError` if messages are missing.

        Writes with only new messages are appended; otherwise all go through the reducer, each removal of all messages
        as an `Overwrite`.
        """
        stored = [value for _, _, value in writes]
        if self._append_new(stored):
            self._check(writes)
            return
        values = _resets(stored, live=False)
        folded: list[PendingWrite] = [("", self.key, value) for value in values]
        # Folding makes a new list, which would lose the expected length.
        if isinstance(writes, CheckedWrites):
            folded = CheckedWrites(folded, writes.expected, writes.session_id)
        super().replay_writes(folded)


def _resets(values: Sequence[Any], *, live: bool = True) -> list[Any]:
    """Return writes in which each "remove all" is replaced by an `Overwrite` with the messages after it, which the base
    channel supports.

    Of one superstep, writes before the last removal are dropped, and all later ones are folded into one `Overwrite`.
    Writes without a removal are returned unchanged.

    Args:
        values: The writes, each one message or a list.
        live: Whether the writes are of one superstep; False for stored writes, each of which is replaced on its own.
    """
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
    """Whether an item is LangGraph's request to remove all messages."""
    return isinstance(item, RemoveMessage) and item.id == REMOVE_ALL_MESSAGES


_collected: ContextVar[list[tuple[str, Any]] | None] = ContextVar("graph_agent_own_writes", default=None)
"""List that receives the writes of the running node's code; None before `collect_writes`."""


class ResponseExtras(TypedDict, total=False):
    """Writes that middleware returned with the newest reply of the model; an absent key stands for nothing."""

    messages: list[AnyMessage]
    """Messages for the history, after the results of the reply's calls, or after the answer."""
    structured: Any
    """The structured response that belongs to the answer."""


def collect_writes(into: list[tuple[str, Any]]) -> None:
    """Append every later `write_field` of the current task to `into`, which the node then adds to its update."""
    _collected.set(into)


def write_field(name: str, value: Any) -> None:
    """Write a field of the state from user code inside a node, e.g. middleware. Ignored before `collect_writes`."""
    if (collected := _collected.get()) is not None:
        collected.append((name, value))


def take_extras(writes: list[tuple[str, Any]], mark: str) -> ResponseExtras:
    """Remove the writes of `messages` and `structured_response` from `writes`, in place, and return them as
    `ResponseExtras`: the last structured response under `structured`, and all messages under `messages`.

    A key without a write is missing.

    Args:
        writes: `(field, value)` of each write; `messages` has one message or a list.
        mark: Key that is set to True in the `additional_kwargs` of each returned user message, because it would
            otherwise count as the beginning of another input.
    """
    extras: ResponseExtras = {}
    for name, value in writes:
        if name == "structured_response":
            extras["structured"] = value
        elif name == "messages":
            for message in value if isinstance(value, list) else [value]:
                # A user message would otherwise count as the begin of another input.
                marked = {"additional_kwargs": {**message.additional_kwargs, mark: True}}
                kept = message.model_copy(update=marked) if isinstance(message, HumanMessage) else message
                extras["messages"] = [*extras.get("messages", []), kept]
    writes[:] = [write for write in writes if write[0] not in ("messages", "structured_response")]
    return extras


class AfterWave(TypedDict):
    """Effects of a call that take place after its wave (the calls that run in parallel)."""

    messages: list[AnyMessage]
    """Messages of the user or the system to append to the history."""
    handoff: Handoff | None
    """A command to the parent graph; None if there is none."""


class RemoteState(TypedDict):
    """A session's conversations with delegates and its open tasks there, and effects of calls that the next plan
    applies."""

    contexts: dict[str, str]
    """Delegate name → id of this session's conversation with it."""
    open: dict[str, RemoteTask]
    """Call id → its task that waits for a person."""
    after: NotRequired[dict[str, AfterWave]]
    """Call id → its effects after the wave; absent if there are none."""
    background: NotRequired[dict[str, BackgroundTask]]
    """Call id → its task in the background; absent if there are none."""


class RemoteChange(TypedDict):
    """A write to `remote`; see `change_remote`."""

    contexts: dict[str, str]
    """Delegate name → id of the conversation, to add or replace."""
    open: dict[str, RemoteTask | None]
    """Call id → its task; None removes the task."""
    after: NotRequired[dict[str, AfterWave] | None]
    """Effects to add; None removes all."""
    background: NotRequired[dict[str, BackgroundTask | None]]
    """Call id → its task in the background; None removes the task."""


NOTHING_REMOTE: RemoteState = {"contexts": {}, "open": {}}
"""The value of `remote` before the first change."""


def change_remote(state: RemoteState | None, change: RemoteChange | None) -> RemoteState | None:
    """Reducer of `remote`: return the current value merged with a change. None or an empty change returns the current
    value.

    A task of None under `open` or `background` removes the entry of its call id, and `after` of None removes all
    effects. The result has no empty `after` or `background`.
    """
    if not change:
        return state
    state = state or NOTHING_REMOTE
    tasks = {**state["open"], **change["open"]}
    merged: RemoteState = {
        "contexts": {**state["contexts"], **change["contexts"]},
        "open": cast("dict[str, RemoteTask]", {id_: task for id_, task in tasks.items() if task is not None}),
    }
    added = change.get("after", {})
    if added is not None and (after := {**state.get("after", {}), **added}):
        merged["after"] = after
    running = {**state.get("background", {}), **change.get("background", {})}
    if background := {id_: task for id_, task in running.items() if task is not None}:
        merged["background"] = background
    return merged


def after_wave(call_id: str, messages: list[AnyMessage], handoff: Handoff | None) -> RemoteChange:
    """Return the write to `remote` that stores effects of a call until its wave has ended."""
    return {"contexts": {}, "open": {}, "after": {call_id: {"messages": messages, "handoff": handoff}}}
