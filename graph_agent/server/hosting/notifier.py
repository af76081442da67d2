"""Notification of followers about stored checkpoints and about the stop of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver


class CheckpointNotifier:
    """Wakes the followers of a saver's threads in one process; its methods belong to one event loop."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False
        """Whether the server is stopping."""

    def watch(self, saver: BaseCheckpointSaver[Any]) -> None:
        """Notify of every checkpoint that is stored through a saver, by any run."""
        aput: Callable[..., Any] = saver.aput

        async def aput_and_notify(config: Any, *args: Any, **kwargs: Any) -> Any:
            stored = await aput(config, *args, **kwargs)
            self.notify(config["configurable"]["thread_id"])
            return stored

        # Patched, not wrapped: other code derives the location of the sessions from the saver's class.
        saver.aput = aput_and_notify  # type: ignore[method-assign]

    def notify(self, thread: str) -> None:
        """Wake the followers of a thread."""
        for event in self._subscribers.get(thread, ()):
            event.set()

    def stop(self) -> None:
        """Wake all followers for the last time; may be called from a signal handler."""
        self.stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._notify_all)

    @contextmanager
    def subscribe(self, thread: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when a checkpoint of a thread is stored or the server stops.

        The subscriber clears it.
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
        """Yield an event that is set when the server stops."""
        with self.subscribe("") as event:
            if self.stopped:
                event.set()
            yield event

    def _notify_all(self) -> None:
        for events in self._subscribers.values():
            for event in events:
                event.set()
