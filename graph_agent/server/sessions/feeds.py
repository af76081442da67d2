"""Feeds of sessions' events: a session is read once per change, whatever the number of its followers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from graph_agent.events.types import StoredEvent
from graph_agent.server.sessions.notifier import News
from graph_agent.session.event_reader import EventReader

LOOK_S = 2.0
"""Seconds between two readings of what another process may have stored; what this one stores is read at once."""
_REST_S = 0.1
"""Seconds between two readings at least: a run stores several checkpoints at once."""


class SessionFeed:
    """The new events of one session, held until every follower has taken them."""

    def __init__(self, reader: EventReader) -> None:
        self.ended: str | None = None
        """Why nothing more will come: `deleted` or `server_stopping`; None while more may."""
        self._reader = reader
        self._events: list[StoredEvent] = []
        self._first = 0
        self._cursors: dict[object, int] = {}
        self._history: asyncio.Task[list[StoredEvent]] | None = None
        self._changed = asyncio.Event()

    @property
    def followers(self) -> int:
        """How many follow."""
        return len(self._cursors)

    def join(self) -> object:
        """Hold what comes from now on for one follower more; its key for `take` and `leave`."""
        follower = object()
        self._cursors[follower] = self._first + len(self._events) - 1
        return follower

    def leave(self, follower: object) -> None:
        """Hold nothing more for a follower."""
        self._cursors.pop(follower, None)
        self._trim()

    async def take(self, follower: object, after: int) -> Sequence[StoredEvent]:
        """The events behind position `after`, the first of which has the `seq` `after + 1`.

        Raises:
            Exception: What reading the session's history has raised.
        """
        if after + 1 < self._first:
            # Followers that join together share one reading of the history.
            if self._history is None or self._history.done():
                self._history = asyncio.create_task(self._reader.read_all())
            return (await asyncio.shield(self._history))[after + 1 :]
        found = self._events[after + 1 - self._first :]
        self._cursors[follower] = min(after + len(found), self._first + len(self._events) - 1)
        self._trim()
        return found

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next change, some seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def read(self) -> None:
        """Take in what is new of the session, and wake the followers."""
        new = await self._reader.read()
        if new is None:
            self.end("deleted")
        elif new:
            self._events += new
            self._wake()

    def end(self, reason: str) -> None:
        """Note that nothing more will come, and wake the followers."""
        self.ended = reason
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _trim(self) -> None:
        taken = min(self._cursors.values(), default=self._first - 1) + 1 - self._first
        if taken > 0:
            del self._events[:taken]
            self._first += taken


class Feeds:
    """The feeds of one process's sessions, each kept while it has followers.

    Args:
        news: Notifies of checkpoints that are stored in this process.
        reader_of: Makes the reader of a thread.
    """

    def __init__(self, news: News, reader_of: Callable[[str], EventReader]) -> None:
        self._news = news
        self._reader_of = reader_of
        self._feeds: dict[str, tuple[SessionFeed, asyncio.Task[None]]] = {}

    @asynccontextmanager
    async def following(self, thread: str) -> AsyncIterator[tuple[SessionFeed, object]]:
        """The feed of a thread, and this follower's key to it, until the block is left.

        Raises:
            Exception: What reading the session has raised.
        """
        feed, pump = self._feeds.get(thread, (None, None))
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
        try:
            with self._news.of(thread) as bell:
                while not self._news.over:
                    bell.clear()
                    await feed.read()
                    if feed.ended is not None:
                        return
                    await asyncio.sleep(_REST_S)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await bell.wait()
        finally:
            if feed.ended is None:
                feed.end("server_stopping")
