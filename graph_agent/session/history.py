"""Reads session history from checkpoints, reads events incrementally, and summarizes sessions.

A session is one LangGraph thread. Its events are in a delta channel: each checkpoint has only the events that its
superstep wrote, and the history is what all ancestors wrote, back to the last full copy. A wave is the calls of one
plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graph_agent.base._internal.text import check_session_id, text_of
from graph_agent.base.errors import ConfigError, DamagedSessionError, NewerFormatError
from graph_agent.base.history.events import Event, StoredEvent, read_events
from graph_agent.base.types import SessionStatus
from graph_agent.core.state.feedback import newest_feedback as newest_feedback  # evaluation reads events with it
from graph_agent.core.state.feedback import pending_feedback, with_ratings
from graph_agent.core.state.lengths import CheckedWrites, lengths_of, read_again, removed
from graph_agent.session.activity import Activity, check_status_filter, group_of, running_check, session_activity
from graph_agent.session.built_agent import NO_SAVER
from graph_agent.session.open_input import events_of, status_at, unfinished_events
from graph_agent.session.pending_feedback import feedback_after, stored_notes
from graph_agent.storage.checkpoints.format import part_of_history

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.store.base import BaseStore
    from langgraph.types import StateSnapshot

    from graph_agent.core.state.model_requests import ModelRequest

_MAX_TAIL_CHECKPOINTS = 1000
"""Maximum checkpoints to walk back before the whole history is read instead."""


async def read_tail(
    saver: BaseCheckpointSaver[Any],
    newest: CheckpointTuple,
    whole: Callable[[], Awaitable[list[StoredEvent]]],
    *,
    last: int | None = None,
    after: int = -1,
    pending: bool = False,
    known: tuple[str | None, int] = (None, 0),
    feedback: Sequence[StoredEvent] = (),
) -> tuple[int, list[StoredEvent]]:
    """Return the newest events up to a checkpoint, and the index of the first of them in the history.

    Args:
        saver: The checkpointer of the session.
        newest: The checkpoint.
        whole: Reads the whole history. It is called if the ancestors' writes do not suffice: they reach back to a full
            copy, the history was overwritten, or more than `_MAX_TAIL_CHECKPOINTS` would be read.
        last: Maximum number of events, the newest ones; None for no limit.
        after: Only events with a higher index are returned.
        pending: Whether to include events after the checkpoint: those of calls that have finished while others of their
            wave run, and the first ones of an input whose first plan is not stored.
        known: The id of an ancestor, at which reading ends, and the number of events at it.
        feedback: Events that no run has read yet, which follow all others; `whole` includes them.
    """

    def begin(total: int) -> int:
        """Return the index of the first event to return, if there are `total` events."""
        return min(total, max(after + 1, 0 if last is None else total - last))

    unfinished = await unfinished_events(saver, newest) if pending else []
    batches: list[list[StoredEvent]] = [[*(unfinished or ()), *feedback]]
    at, count = newest, len(batches[0])
    stored = lengths_of(newest.metadata).get("events")
    total = stored + count if stored is not None else None
    if total is None and pending and (counted := _counted(newest)) is not None:
        total = counted + count
    # A task that has overwritten the history makes the numbers of events before it meaningless.
    for _ in range(_MAX_TAIL_CHECKPOINTS if unfinished is not None else 0):
        if at.checkpoint["id"] == known[0]:
            total = known[1] + count
        elif "events" in at.checkpoint["channel_values"]:
            break
        elif at.parent_config is None:
            if lengths_of(at.metadata).get("events"):
                break  # a damaged session, which the whole history reports
            total = count
        elif total is None or count < total - begin(total):
            before = await saver.aget_tuple(part_of_history(at.parent_config))
            batch = _written(before) if before is not None else None
            if before is None or batch is None or _has_other_events(len(batch), before, at):
                break
            batches.append(batch)
            count += len(batch)
            if total is None and (counted := _counted(before)) is not None:
                total = counted + count
            at = before
        if total is not None and count >= total - begin(total):
            events = [event for batch in reversed(batches) for event in batch]
            return begin(total), events[count - (total - begin(total)) :]
    events = await whole()
    return begin(len(events)), events[begin(len(events)) :]


def pending_events(newest: CheckpointTuple) -> list[StoredEvent]:
    """Return the stored events after a session's newest checkpoint: those of calls whose wave still runs or waits.

    Empty if a task has overwritten the whole history.
    """
    return _written(newest) or []


def _written(at: CheckpointTuple) -> list[StoredEvent] | None:
    """Return the events that the tasks of a checkpoint wrote; None if one of them overwrote the whole history."""
    writes = [value for _, channel, value in at.pending_writes or [] if channel == "events"]
    return [event for write in writes for event in write] if all(isinstance(each, list) for each in writes) else None


def _has_other_events(found: int, before: CheckpointTuple, at: CheckpointTuple) -> bool:
    """Return whether the number of events between a checkpoint and its parent (`before`) differs from the recorded one.

    `found` is the number that was read. If it differs, events are lost or were moved by a pruning. False if unknown.
    """
    unknown = None if "events" in before.checkpoint["channel_versions"] else 0
    first, last = lengths_of(before.metadata).get("events", unknown), lengths_of(at.metadata).get("events")
    return first is not None and last is not None and found != last - first


def stored_event_count(state: StateSnapshot) -> int:
    """Return the number of events in a state's checkpoint, without those of a wave that still runs."""
    return lengths_of(state.metadata).get("events", len(state.values.get("events", [])))


def model_requests(events: Iterable[Mapping[str, Any]]) -> list[ModelRequest]:
    """Return the requests that models received, oldest first, from the events of a session since its beginning.

    Requests that were not recorded are reconstructed from the history, and marked as `reconstructed`.
    """
    from graph_agent.core.state.model_requests import requests_of

    return requests_of(events)


def _counted(at: CheckpointTuple) -> int | None:
    """Return the number of events at a checkpoint if a plan that began there has stored it; otherwise None."""
    # Other supersteps write the count of an earlier plan, which the checkpoint itself holds, too.
    held = _count_in(at.checkpoint["channel_values"].get("loop"))
    written = [_count_in(value) for _, channel, value in at.pending_writes or [] if channel == "loop"]
    return next((count for count in written if count is not None and count != held), None)


def _count_in(loop: Any) -> int | None:
    """Return the number of events that a loop state records; None if it records none."""
    count = loop.get("events_before") if isinstance(loop, dict) else None
    return count if isinstance(count, int) else None


class EventReader:
    """Reads the events of one session that were stored since the last read.

    A read loads one checkpoint, and one more for each superstep stored since the last read.

    Args:
        graph: The compiled agent; None to rebuild the events from stored writes alone.
        saver: The checkpointer of the session.
        session_id: Id of the session.
    """

    def __init__(
        self, graph: CompiledStateGraph[Any, Any, Any, Any] | None, saver: BaseCheckpointSaver[Any], session_id: str
    ) -> None:
        self._graph = graph
        self._saver = saver
        self._store = graph.store if graph is not None else None
        self._thread: RunnableConfig = {"configurable": {"thread_id": session_id}}
        self._seen: str | None = None
        self._shown: list[StoredEvent] = []
        """Events of `pending` that `read_early` has returned, and `read` has not."""
        self.count = 0
        """Number of events read so far, which is the index of the next event."""
        self.pending: list[StoredEvent] = []
        """Events at the last read that are not in their final place: those of calls that had finished while others of
        their wave ran or waited, those of an input whose first plan is not stored, and feedback since the last
        checkpoint."""

    async def read(self) -> Sequence[StoredEvent] | None:
        """Return the events stored since the last read, all events at the first; None if there is no such session.

        A forked or restarted session is read from index `count` on. Raises `DamagedSessionError` if a part is missing.
        """
        return await read_again(self._read)

    async def _read(self) -> Sequence[StoredEvent] | None:
        """Read once for `read`: return the new events (None without a session), and set `count` and `pending`.

        Raises `CheckpointRemovedError` if the session is pruned meanwhile.
        """
        newest = await self._saver.aget_tuple(self._thread)
        if newest is None:
            return None
        checkpoint_id, feedback = newest.checkpoint["id"], await feedback_after(self._saver, self._store, newest)
        pending = [*(await unfinished_events(self._saver, newest) or ()), *feedback]
        if checkpoint_id == self._seen:
            self.pending = pending
            return ()
        if self._seen is None:
            events = await self._events_at(newest)
        else:
            known = self._seen, self.count
            _, events = await read_tail(
                self._saver, newest, lambda: self._events_at(newest), after=self.count - 1, known=known
            )
        self._seen, self.pending = checkpoint_id, pending
        self.count += len(events)
        return events

    async def read_early(self) -> list[tuple[int, StoredEvent]] | None:
        """Return the new events, also those in `pending`, once each with an index; None if there is no such session.

        The index of an event in `pending` may rise, because events of other calls of the wave may come before it.
        """
        before, found = self.count, list[tuple[int, StoredEvent]]()
        new = await self.read()
        if new is None:
            return None
        for index, event in enumerate(new, before):
            if (same := without_times(event)) in self._shown:
                self._shown.remove(same)
            else:
                found.append((index, event))
        for index, event in enumerate(self.pending, self.count):
            if (same := without_times(event)) not in self._shown:
                self._shown.append(same)
                found.append((index, event))
        return found

    async def read_all(self) -> list[StoredEvent]:
        """Return every event of the session, oldest first, without a change of `count`."""

        async def read() -> list[StoredEvent]:
            """Read the events at the newest checkpoint."""
            return await self._events_at(await self._saver.aget_tuple(self._thread))

        return await read_again(read)

    async def read_tail(
        self, *, last: int | None = None, after: int = -1, pending: bool = False
    ) -> tuple[int, list[StoredEvent]] | None:
        """Return the newest events, and the index of the first of them; None if there is no such session.

        The whole history is only read if needed. `count` does not change; `pending` is set.

        Args:
            last: Maximum number of events, the newest ones; None for no limit.
            after: Only events with a higher index are returned.
            pending: Whether to include events of calls that have ended before their wave has, and unread feedback.
        """

        async def read() -> tuple[int, list[StoredEvent]] | None:
            """Read the tail at the newest checkpoint, and set `pending`; None if the session has no checkpoint."""
            newest = await self._saver.aget_tuple(self._thread)
            if newest is None:
                return None
            feedback = await feedback_after(self._saver, self._store, newest) if pending else []
            self.pending = [*(await unfinished_events(self._saver, newest) or () if pending else ()), *feedback]

            async def whole() -> list[StoredEvent]:
                """Read the whole history."""
                return await self._events_at(newest) + self.pending

            return await read_tail(
                self._saver, newest, whole, last=last, after=after, pending=pending, feedback=feedback
            )

        return await read_again(read)

    async def _events_at(self, checkpoint: CheckpointTuple | None) -> list[StoredEvent]:
        """Return the events at a checkpoint; without a checkpoint (None), an empty list.

        Raises `CheckpointRemovedError` if a pruning has removed the checkpoint.
        """
        if checkpoint is None:
            return []
        if self._graph is None:
            return await self._stored_at(checkpoint)
        state = await self._graph.aget_state(checkpoint.config)
        if state.created_at is None:
            at = checkpoint.config["configurable"]
            raise removed(str(at["thread_id"]), at["checkpoint_id"])
        return list(state.values.get("events", []))

    async def _stored_at(self, checkpoint: CheckpointTuple) -> list[StoredEvent]:
        """Return the events at a checkpoint, rebuilt from the last full copy and what was written after it.

        An overwrite of the history replaces what was before. Raises `DamagedSessionError` if events are missing.
        """
        values = checkpoint.checkpoint["channel_values"]
        if "events" in values:
            return list(_unwrapped(values["events"]))
        channels = await self._saver.aget_delta_channel_history(config=checkpoint.config, channels=["events"])
        history = channels["events"]
        events: list[StoredEvent] = list(_unwrapped(history.get("seed", ())))
        for _, _, written in history["writes"]:
            if isinstance(written, list):
                events += written
            else:
                events = list(_unwrapped(written) or ())
        if isinstance(history["writes"], CheckedWrites):
            history["writes"].check(len(events))
        return events


def without_times(event: StoredEvent) -> StoredEvent:
    """Return an event without `ts` and `queued_s`, which may change when the event is stored finally."""
    return {name: value for name, value in event.items() if name not in ("ts", "queued_s")}


def _unwrapped(stored: Any) -> Any:
    """Return the value in a full copy or an `Overwrite`, also one that was read as a dict; other values unchanged."""
    return stored["value"] if isinstance(stored, dict) else getattr(stored, "value", stored)


class SessionMemory:
    """The history of all sessions of an agent.

    Args:
        graph: The compiled graph, with its checkpointer.

    Raises:
        ConfigError: When the graph has no checkpointer.
    """

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
        if not graph.checkpointer or graph.checkpointer is True:
            raise ConfigError(NO_SAVER)
        self._graph = graph
        self._saver = graph.checkpointer

    async def get_session_events(
        self, session_id: str, checkpoint_id: str | None = None, *, last: int | None = None, after: int = -1
    ) -> list[Event]:
        """Return the events of a session, oldest first.

        Without `checkpoint_id`, those after the newest checkpoint are included: of calls that ended before their wave
        has, and unread feedback. `last` or `after` read only the checkpoints needed, if `prune` has not removed them.

        Args:
            session_id: Id of the session, which is the LangGraph thread id.
            checkpoint_id: Id of an earlier checkpoint, for the events up to it; None for the newest.
            last: Maximum number of events, the newest ones; None for all.
            after: Only events whose `seq` is higher.

        Returns:
            The events; empty for a session or a checkpoint that does not exist.

        Raises:
            DamagedSessionError: If a part of the history is missing; `InputError` if an id has a lone surrogate.
        """
        config: RunnableConfig = {"configurable": {"thread_id": check_session_id(session_id)}}
        if checkpoint_id is not None:
            config["configurable"]["checkpoint_id"] = checkpoint_id

        # What follows an earlier checkpoint belongs to a later one.
        pending = checkpoint_id is None
        notes = await stored_notes(self._saver, self._graph.store, session_id) if pending else []

        async def whole() -> list[StoredEvent]:
            """Read the whole history."""
            state = await self._graph.aget_state(config)
            if not pending:
                return list(state.values.get("events", []))
            return [*events_of(state), *pending_feedback(notes, state.values.get("loop"))]

        if last is None and after < 0:
            return read_events(await whole(), session_id)
        newest = await self._saver.aget_tuple(config)
        if newest is None:
            return []
        feedback = pending_feedback(notes, newest.checkpoint["channel_values"].get("loop"))
        first, stored = await read_tail(
            self._saver, newest, whole, last=last, after=after, pending=pending, feedback=feedback
        )
        return read_events(stored, session_id, first)

    async def get_session_status(self, session_id: str) -> SessionStatus:
        """Return the status of a session, read from its newest checkpoint; `CREATED` if it does not exist."""
        newest = await self._saver.aget_tuple({"configurable": {"thread_id": check_session_id(session_id)}})
        if newest is None:
            return SessionStatus.CREATED
        return status_at(newest)

    async def list_sessions(self, *, status: str | None = None, user: str | None = None) -> list[str]:
        """Return the ids of sessions, newest first.

        Args:
            status: `interrupted` (a crash, or a stream left early), `running`, `waiting`, or that of an ended input,
                such as `completed`; each session is read for it. None for all.
            user: Only sessions with an id `<user>/<name>`, as a server names those of an API key. None for all.

        Raises:
            InputError: The status is unknown.
        """
        if status is None:
            return await list_threads(self._saver, group=group_of(user))
        wanted, is_running = check_status_filter(status), running_check(self._saver)
        found = await summarize_sessions(self._saver, is_running, group=group_of(user))
        return [each.id for each in found if each.shown_status == wanted]


async def list_threads(
    saver: BaseCheckpointSaver[Any], *, group: str | None = None, after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return ids of a checkpointer's threads, ordered by their first checkpoint, newest first.

    The checkpointers of `open_saver` read a page by an index; for others, one checkpoint of each thread is read.

    Args:
        saver: The checkpointer.
        group: Text with which ids begin, up to their only slash; empty for ids without a slash, None for all ids.
        after: Id of the thread after which the list begins; None for the beginning.
        limit: Maximum number of ids; None for no limit.

    Raises:
        KeyError: If there is no thread `after`.
    """
    if (page := getattr(saver, "list_threads", None)) is not None:
        return list(await page(group=group, after=after, limit=limit))
    found = await _all_threads(saver)
    if group is not None:
        found = [thread for thread in found if thread.startswith(group) and "/" not in thread[len(group) :]]
    if after is not None:
        if after not in found:
            raise KeyError(after)
        found = found[found.index(after) + 1 :]
    return found[:limit]


async def _all_threads(saver: BaseCheckpointSaver[Any]) -> list[str]:
    """Return the ids of all threads, newest first, for a checkpointer without an index of threads."""
    # A thread begins with an input at superstep -1 or an update at superstep 0: this finds one row per session.
    first_ids: dict[str, str] = {}
    for first in ({"step": -1}, {"step": 0, "source": "update"}):
        async for found in saver.alist(None, filter=first):
            at = found.config["configurable"]
            if found.parent_config is None and not at.get("checkpoint_ns"):
                first_ids[at["thread_id"]] = at["checkpoint_id"]
    # Checkpoint ids grow with time, across threads too.
    return sorted(first_ids, key=lambda thread_id: first_ids[thread_id], reverse=True)


TITLE_LENGTH = 60
"""Maximum characters of a title."""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session of a database, for a list."""

    id: str
    """The id of the session."""
    title: str
    """The title that a user gave it, or else the first user message, cut to one line; empty if neither is stored."""
    updated_at: str
    """When the newest checkpoint was stored: ISO 8601, UTC; empty if the session cannot be read."""
    turns: int
    """Model calls of the planning phase so far, as `max_turns` counts them."""
    messages: int | None
    """Number of the user's messages; None if an earlier version began the session."""
    model_calls: int | None
    """Model calls so far, with those of answers, hooks and delegates; None if an earlier version began the session."""
    status: SessionStatus
    """Status of the session; `RUNNING` until its newest input has ended."""
    activity: Activity
    """`running`; `waiting` for an answer; `interrupted`: a run's process ended, or its stream was left, before its end;
    `idle`: the newest input has ended; `newer` (stored by a newer version of this package) or `damaged`: it cannot be
    read, and the other fields have no values."""
    thumbs_up: int = 0
    """Positive ratings of its answers, at most one by each user for an answer."""
    thumbs_down: int = 0
    """Negative ratings of its answers."""
    forked_from: str | None = None
    """Id of the session of which this one is a copy; None if it is none, or an earlier version forked it."""

    @property
    def shown_status(self) -> str:
        """The activity, or of an idle session its status in lower case."""
        return self.status.lower() if self.activity == "idle" else self.activity


async def summarize_sessions(
    saver: BaseCheckpointSaver[Any],
    is_running: Callable[[str], Awaitable[bool]],
    *,
    group: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[SessionSummary]:
    """Return summaries of sessions, newest first. A damaged one, or one of a newer version, has only its id and why.

    Args:
        saver: The checkpointer of the sessions.
        is_running: Returns whether a run of a session is in progress; called for unfinished sessions only.
        group: Selects sessions as in `list_threads`.
        after: Id of the session after which the list begins; None for the beginning.
        limit: Maximum number of sessions; None for no limit.

    Raises:
        KeyError: If there is no session `after`.
    """
    summaries = []
    for session_id in await list_threads(saver, group=group, after=after, limit=limit):
        try:
            newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
            if newest is not None:
                summaries.append(await summarize_session(saver, session_id, newest, is_running))
        except (NewerFormatError, DamagedSessionError) as error:
            unread: Activity = "newer" if isinstance(error, NewerFormatError) else "damaged"
            summaries.append(SessionSummary(session_id, "", "", 0, None, None, SessionStatus.CREATED, unread))
    return summaries


async def summarize_session(
    saver: BaseCheckpointSaver[Any],
    session_id: str,
    newest: CheckpointTuple,
    is_running: Callable[[str], Awaitable[bool]],
    store: BaseStore | None = None,
) -> SessionSummary:
    """Return the summary of one session. The first checkpoint is read only for a session without a title of its own.

    Args:
        saver: The checkpointer of the session.
        session_id: Id of the session.
        newest: The newest checkpoint of the session.
        is_running: Returns whether a run of it is in progress; only called if its newest input has not ended.
        store: The Store of the agent; None for the one in the checkpointer's database.
    """
    values = newest.checkpoint["channel_values"]
    loop = found if isinstance(found := values.get("loop"), dict) else {}
    calls = (values.get("usage") or {}).get("model_calls", 0)
    # Until its first plan is stored, only the pending tasks show an input.
    begun = [each["type"] for each in await unfinished_events(saver, newest) or ()].count("user_message")
    noted = await feedback_after(saver, store, newest)
    ratings = [each for given in with_ratings(loop.get("ratings", {}), noted).values() for each in given.values()]
    given = next((each["title"] for each in reversed(noted) if each["type"] == "rename"), loop.get("title"))
    origin = next((each["origin"] for each in reversed(noted) if each["type"] == "fork"), loop.get("forked_from"))
    return SessionSummary(
        id=session_id,
        title=given or title_of(await _first_checkpoint(saver, session_id)),
        updated_at=newest.checkpoint["ts"],
        turns=loop.get("turn", 0),
        messages=loop.get("inputs", 0) + begun if not loop or "inputs" in loop else None,
        model_calls=loop.get("calls_before", 0) + calls if not loop or "calls_before" in loop else None,
        status=status_at(newest),
        activity=await session_activity(session_id, newest, is_running),
        thumbs_up=ratings.count("up"),
        thumbs_down=ratings.count("down"),
        forked_from=origin,
    )


def title_of(first: CheckpointTuple | None) -> str:
    """Return the first user message, cut to one line of at most `TITLE_LENGTH` characters; empty if there is none.

    `first` is the thread's oldest checkpoint; None if it has none.
    """
    given = first.checkpoint["channel_values"].get("__start__") if first is not None else None
    messages = given.get("messages") if isinstance(given, dict) else None
    listed = messages if isinstance(messages, list) else [messages]
    return shortened_line(next((text for message in listed if (text := _user_text(message))), ""))


def shortened_line(text: str, length: int = TITLE_LENGTH) -> str:
    """Return a text as one line of at most `length` characters, ending in `…` if it was cut."""
    line = " ".join(text[: 20 * length].split())
    return f"{line[: length - 1].rstrip()}…" if len(line) > length or text[20 * length :].strip() else line


def _user_text(message: Any) -> str:
    """Return the text of a user's message in any form that LangGraph accepts, also a bare text; else an empty text."""
    if isinstance(message, str):
        return message
    if isinstance(message, Sequence):
        role, content = message if len(message) == 2 else ("", "")
    elif isinstance(message, dict):
        role, content = message.get("role") or message.get("type"), message.get("content")
    else:
        role, content = getattr(message, "type", ""), getattr(message, "content", "")
    return text_of(content) if role in ("human", "user") and isinstance(content, str | list) else ""


async def _first_checkpoint(saver: Any, session_id: str) -> CheckpointTuple | None:
    """Return the first checkpoint of a session, which holds its first input; None if there is none."""
    if hasattr(saver, "first_checkpoint"):
        stored: CheckpointTuple | None = await saver.first_checkpoint(session_id)
        return stored
    thread: Any = {"configurable": {"thread_id": session_id, "checkpoint_ns": ""}}
    first: CheckpointTuple
    async for first in saver.alist(thread, filter={"step": -1}, limit=1):
        return first
    return None
