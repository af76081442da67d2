"""Who follows a session hears at once that something of it was stored here, and that the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver


class News:
    """Wakes those who follow the threads of one process's saver; its methods belong to one event loop."""

    def __init__(self) -> None:
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.over = False
        """Whether the server stops."""

    def watch(self, saver: BaseCheckpointSaver[Any]) -> None:
        """Tell of every checkpoint that is stored through a saver, whoever's run it is."""
        store: Callable[..., Any] = saver.aput

        async def storing(config: Any, *args: Any, **kwargs: Any) -> Any:
            stored = await store(config, *args, **kwargs)
            self.tell(config["configurable"]["thread_id"])
            return stored

        # On the object itself: what kind of saver it is says where its sessions are, and a wrapper would hide that.
        saver.aput = storing  # type: ignore[method-assign]

    def tell(self, thread: str) -> None:
        """Wake those who follow a thread."""
        for bell in self._bells.get(thread, ()):
            bell.set()

    def end(self) -> None:
        """Wake everybody for the last time; a signal handler may do so."""
        self.over = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ring_all)

    @contextmanager
    def of(self, thread: str) -> Iterator[asyncio.Event]:
        """A bell that rings when something of a thread was stored, or the server stops; its owner clears it."""
        self._loop = asyncio.get_running_loop()
        bell = asyncio.Event()
        self._bells.setdefault(thread, set()).add(bell)
        try:
            yield bell
        finally:
            self._bells[thread].discard(bell)
            if not self._bells[thread]:
                del self._bells[thread]

    def _ring_all(self) -> None:
        for bells in self._bells.values():
            for bell in bells:
                bell.set()
