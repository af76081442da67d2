"""Gives followers of a session its stored events, and the output of its active run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base.history.events import StoredEvent
from graph_agent.session.history import EventReader, without_times

LOOK_S = 2.0
"""Seconds between two reads of the database for changes by other processes.

Changes by this process are read at once.
"""
_REST_S = 0.1
"""Minimum seconds between two reads, because a run stores several checkpoints in quick succession."""
LivePart = Mapping[str, Any]
"""A piece of a run's output before it is stored: `EARLY`, or an object whose `type` is `begin`, `text`, `reasoning`,
`break`, `progress`, `call` or `end`.
"""

EARLY = "events"
"""Type of the part with the first events of a superstep that still waits for its model.

`events` has the events, and `seq` the index of the first of them in the history. Followers receive them as events.
"""
RESULTS = ("tool_result", "delegation_response")
"""Types of the events that are results of calls."""


class CheckpointNotifier:
    """Wakes the followers of threads when a checkpoint is stored by this process.

    A follower is a client that reads the events of a session as they are stored. Except `stop`, the methods must be
    called on one event loop.
    """

    def __init__(self) -> None:
        self._subscribers: dict[str, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False

    def watch(self, saver: BaseCheckpointSaver[Any]) -> None:
        """Call `notify` after every checkpoint that a checkpointer stores. The method `aput` of the checkpointer is
        replaced.
        """
        aput: Callable[..., Any] = saver.aput

        async def aput_and_notify(config: Any, *args: Any, **kwargs: Any) -> Any:
            """Store a checkpoint, and notify the followers of its thread."""
            stored = await aput(config, *args, **kwargs)
            self.notify(config["configurable"]["thread_id"])
            return stored

        # Patched, not wrapped: other code derives the location of the sessions from the saver's class.
        saver.aput = aput_and_notify  # type: ignore[method-assign]

    def notify(self, thread: str) -> None:
        """Set the events of a thread's subscribers; does nothing if it has none."""
        for event in self._subscribers.get(thread, ()):
            event.set()

    def stop(self) -> None:
        """Set `stopped`, and wake all followers for the last time. May be called from a signal handler, and in any
        thread.
        """
        self.stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._notify_all)

    @contextmanager
    def subscribe(self, thread: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when a checkpoint of a thread is stored, or the server stops; ends the
        subscription on exit.

        The subscriber clears the event. Each subscriber of a thread has its own.
        """
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._subscribers.setdefault(thread, set()).add(event)
        try:
            yield event
        finally:
            self._subscribers[thread].discard(event)
            if not self._subscribers[thread]:
                del self._subscribers[thread]

    @contextmanager
    def stop_event(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the server stops; it is set already if the server has stopped."""
        with self.subscribe("") as event:
            if self.stopped:
                event.set()
            yield event

    def _notify_all(self) -> None:
        """Set the events of all subscribers."""
        for events in self._subscribers.values():
            for event in events:
                event.set()


class SessionFeed:
    """The new events of one session in this process. An event is kept in memory until every follower has taken it.

    Args:
        reader: Reads the events of the session from the database.
    """

    def __init__(self, reader: EventReader) -> None:
        self.ended: str | None = None
        """Why the feed has ended: `deleted` (the session) or `server_stopping`; None while it is open."""
        self._reader = reader
        self._events: list[StoredEvent] = []
        self._first = 0
        self._cursors: dict[object, int] = {}
        self._history: asyncio.Task[list[StoredEvent]] | None = None
        self.change = asyncio.Event()
        """Set at the next change.

        A follower keeps a reference to it before it takes events, so that it misses no change.
        """

    @property
    def pending(self) -> Sequence[StoredEvent]:
        """The events of finished calls of a parallel batch that still runs or waits; empty without one.

        Their index in the history may still change.
        """
        return self._reader.pending

    @property
    def position(self) -> int:
        """Index of the newest event whose index is final; -1 before the first."""
        return self._first + len(self._events) - 1

    @property
    def followers(self) -> int:
        """Number of followers of this feed."""
        return len(self._cursors)

    def join(self) -> object:
        """Add a follower, and return its key, which `take` and `leave` need. `take` first returns the events that are
        added after this call.
        """
        follower = object()
        self._cursors[follower] = self.position
        return follower

    def leave(self, follower: object) -> None:
        """Remove a follower, and drop the events that only this follower had not taken. Does nothing for an unknown
        key.
        """
        self._cursors.pop(follower, None)
        self._trim()

    async def take(self, follower: object, after: int) -> Sequence[StoredEvent]:
        """Return the events after the index `after`, and record that the follower has them. Empty if the history has no
        later event, also if `after` is larger than its last index.

        If some of them are no longer in memory, the whole history is read from the database, once for all followers
        that wait for it, and nothing is recorded.

        Args:
            follower: The key of the follower.
            after: Index of the newest event that the follower has; -1 for all.
        """
        if after + 1 < self._first:
            # Followers that join together share one reading of the history.
            if self._history is None or self._history.done():
                self._history = asyncio.create_task(self._reader.read_all())
            return (await asyncio.shield(self._history))[after + 1 :]
        found = self._events[after + 1 - self._first :]
        # A client may have named an index that the history does not have, e.g. of a session that was begun again.
        self._cursors[follower] = min(after + len(found), self.position)
        self._trim()
        return found

    async def read(self) -> None:
        """Read the new events from the database, and wake the followers if there are any, or if those of finished calls
        of a parallel batch that still runs have changed.

        End the feed with the reason `deleted` if the session is deleted.
        """
        before = self.pending
        new = await self._reader.read()
        if new is None:
            self.end("deleted")
        elif new:
            self._events += new
            self.wake()
        elif self.pending != before:
            self.wake()

    def end(self, reason: str) -> None:
        """Set `ended` to a reason (`deleted` or `server_stopping`), and wake the followers."""
        self.ended = reason
        self.wake()

    def wake(self) -> None:
        """Set the current `change`, which wakes the followers, and replace it by a new one."""
        # Replaced, not cleared: a follower that has not run yet would miss a cleared event.
        changed, self.change = self.change, asyncio.Event()
        changed.set()

    def _trim(self) -> None:
        """Drop the events that every follower has taken. Without followers, none is dropped."""
        taken = min(self._cursors.values(), default=self._first - 1) + 1 - self._first
        if taken > 0:
            del self._events[:taken]
            self._first += taken


class Feeds:
    """The feeds of the sessions of one process. A feed exists while it has followers.

    Args:
        notifier: Wakes a feed when this process stores a checkpoint.
        reader_of: Returns the reader of a thread's events.
    """

    def __init__(self, notifier: CheckpointNotifier, reader_of: Callable[[str], EventReader]) -> None:
        self._notifier = notifier
        self._reader_of = reader_of
        self._feeds: dict[str, tuple[SessionFeed, asyncio.Task[None]]] = {}

    @asynccontextmanager
    async def following(self, thread: str) -> AsyncIterator[tuple[SessionFeed, object]]:
        """Follow a thread within the context; yields its feed and the follower's key.

        The first follower starts a task that reads the new events, and the last one ends it. A feed that has ended is
        replaced by a new one for new followers. If the task has failed, its exception is raised at the regular end of
        the context.
        """
        feed, pump = self._feeds.get(thread, (None, None))
        # A feed that has ended serves its last followers; a new one may find the session begun again.
        if feed is None or pump is None or feed.ended is not None or pump.done():
            feed = SessionFeed(self._reader_of(thread))
            pump = asyncio.create_task(self._pump(thread, feed), name=f"feed of {thread}")
            self._feeds[thread] = feed, pump
        follower = feed.join()
        try:
            yield feed, follower
            if pump.done():
                await pump
        finally:
            feed.leave(follower)
            if not feed.followers:
                pump.cancel()
                if self._feeds.get(thread, (None,))[0] is feed:
                    del self._feeds[thread]

    async def _pump(self, thread: str, feed: SessionFeed) -> None:
        """Read the thread's new events into its feed, after each change and every 2 seconds, until the feed or the
        server ends.

        Two reads are at least 0.1 s apart. If the server stops, or a read fails, the feed ends as `server_stopping`.
        """
        try:
            with self._notifier.subscribe(thread) as changed:
                while not self._notifier.stopped:
                    # Before the read: a checkpoint that is stored during it must cause another one.
                    changed.clear()
                    await feed.read()
                    if feed.ended is not None:
                        return
                    await asyncio.sleep(_REST_S)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await changed.wait()
        finally:
            if feed.ended is None:
                feed.end("server_stopping")


def is_selected(event: Mapping[str, Any], types: Collection[str]) -> bool:
    """Return whether an event is sent to a client that asked for these types of events.

    Without any type, every event is selected but recorded model requests: they have the system prompt, which most
    clients must not receive by accident.
    """
    return event["type"] in types if types else event["type"] != "model_request"


def visible_event(event: Mapping[str, Any], types: Collection[str], caller: str = "") -> Mapping[str, Any]:
    """Return an event as a client may see it: without recorded model requests in the history of a delegate, unless
    their type is requested, and with the caller's own id of a background task.

    Args:
        event: The event; it is not changed.
        types: The requested types; empty for all.
        caller: Prefix of the caller's threads, which is removed from the id in `background`; empty on a server without
            keys.
    """
    if caller and "background" in event:
        event = {**event, "background": event["background"].removeprefix(caller)}
    if "history" not in event or "model_request" in types:
        return event
    # Delegates record requests, too, with their own system prompts.
    kept = [visible_event(entry, types) for entry in event["history"] if entry["type"] != "model_request"]
    return {**event, "history": kept}


class EventOrder:
    """Selects the events to send to a follower, so that it receives each once, with its index in the history.

    Some events are sent before they are stored (early). They are sent again only if they are stored with other values.

    Args:
        after: Index of the newest event that the follower has.
    """

    def __init__(self, after: int) -> None:
        self.after = after
        """Index of the newest stored event that was sent."""
        self._early: list[StoredEvent] = []
        """The events after `after` that were sent before they were stored."""

    @property
    def next_index(self) -> int:
        """Index of the first event that was sent neither as stored nor as early."""
        return self.after + 1 + len(self._early)

    def early(self, seq: int, events: Sequence[StoredEvent]) -> list[tuple[int, StoredEvent]]:
        """Return the events of a running superstep that were not sent yet, each with its index, and record them as
        sent.

        Args:
            seq: Index of the first of `events` in the history.
            events: The first events of the superstep.
        """
        first = self.next_index
        new = [(index, event) for index, event in enumerate(events, seq) if index >= first]
        self._early += [event for _, event in new]
        return new

    def stored(self, events: Iterable[StoredEvent]) -> list[tuple[int, StoredEvent]]:
        """Return the stored events that must be sent, each with its index: events that were not sent early, or were
        sent with other values (times are not compared).

        Args:
            events: The stored events that follow those of the last call.
        """
        new = []
        for event in events:
            self.after += 1
            known = self._early.pop(0) if self._early else None
            if known is None or without_times(known) != without_times(event):
                new.append((self.after, event))
        return new


def call_end(event: Mapping[str, Any]) -> LivePart:
    """Return the live part that reports the end of a call, from the event of its result."""
    return {"type": "call", "id": event["id"], "status": event["status"], "ts": event["ts"]}


class LiveRuns:
    """The output of the runs that are active in this process, before it is stored at the end of each superstep."""

    def __init__(self) -> None:
        self._runs: dict[str, list[LivePart]] = {}
        self._readers: dict[str, list[Callable[[], None]]] = {}

    def is_read(self, thread: str) -> bool:
        """Return whether the output of a thread's runs has readers."""
        return thread in self._readers

    @contextmanager
    def run(self, thread: str, content: Any) -> Iterator[Callable[[LivePart], None]]:
        """Begin the output of a thread's run within the context; yields a function that adds a part and wakes the
        readers.

        A part of the type `begin` is added first, one of the type `end` on exit, after which new readers do not receive
        the output any more.

        Args:
            thread: The thread.
            content: Content of the user's message, which is stored only with the first plan; None for a run that
                resumes.
        """
        parts: list[LivePart] = [{"type": "begin", "content": content}]
        self._runs[thread] = parts

        def publish(part: LivePart) -> None:
            """Add a part to the run's output, and wake the readers."""
            parts.append(part)
            for wake in self._readers.get(thread, ()):
                wake()

        try:
            yield publish
        finally:
            publish({"type": "end"})
            # The next run of the session may have begun already.
            if self._runs.get(thread) is parts:
                del self._runs[thread]

    @contextmanager
    def reading(self, thread: str, wake: Callable[[], None]) -> Iterator[Callable[[], list[LivePart]]]:
        """Read the output of a thread's runs within the context; yields a function that returns the new parts since its
        last call.

        The first call returns the output of the active run from its beginning, or nothing without an active run.
        Consecutive pieces of text or reasoning are joined to one part.

        Args:
            thread: The thread.
            wake: Called for each new part.
        """
        parts: list[LivePart] | None = None
        position = 0

        def take() -> list[LivePart]:
            """Return the parts that were added since the last call: the rest of the last run that was read, and all of
            a newer one.
            """
            nonlocal parts, position
            taken = parts[position:] if parts is not None else []
            position += len(taken)
            if (current := self._runs.get(thread)) is not parts:
                parts, position = current, len(current or ())
                taken += current or []
            return _joined(taken)

        self._readers.setdefault(thread, []).append(wake)
        try:
            yield take
        finally:
            self._readers[thread].remove(wake)
            if not self._readers[thread]:
                del self._readers[thread]


def _joined(parts: Sequence[LivePart]) -> list[LivePart]:
    """Return parts in which consecutive pieces of text are joined to one part, and consecutive pieces of reasoning to
    another.
    """
    joined: list[LivePart] = []
    for part in parts:
        if part["type"] in ("text", "reasoning") and joined and joined[-1]["type"] == part["type"]:
            joined[-1] = {**part, "text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    return joined
