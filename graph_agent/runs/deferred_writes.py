"""Writes of one run that its saver has queued and not yet committed.

A saver commits such writes within milliseconds, in order, together with those that follow. A crash can therefore lose
the newest steps of a run, but never a step before a stored one. Everything is committed before a call that may write
starts, before the model reads the result of such a call, and before the run ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import anyio

_FLUSH_S = 10.0
"""Maximum seconds to wait for queued writes when a run ends with an error or is cancelled."""


@runtime_checkable
class SupportsDeferral(Protocol):
    """A saver that can defer the writes of a run."""

    defers_writes: bool
    """Whether a request within a run that has `DeferredWrites` may return before its write is committed."""


def defers_writes(saver: object) -> bool:
    """Whether a saver can defer the writes of a run."""
    return isinstance(saver, SupportsDeferral) and saver.defers_writes


@dataclass(eq=False)
class DeferredWrites:
    """The queued writes of one run. The saver records outcomes, in SQLite on its thread."""

    namespace: str = ""
    """The run's checkpoint namespace; a graph inside the run defers nothing under `durability="sync"`."""
    must_commit: bool = True
    """Whether a checkpoint must be committed before the saver returns; initially, since a resumed call may write."""
    error: BaseException | None = None
    """Why a write of the run failed; all later writes of the run are refused with it. None if none failed."""
    _commit: Callable[[], Awaitable[None]] | None = None
    _queued: int = 0
    _done: int = 0

    def queue(self, commit: Callable[[], Awaitable[None]]) -> None:
        """Record that a write was queued.

        Args:
            commit: Commits everything queued so far.

        Raises:
            BaseException: The error of an earlier write of the run.
        """
        if self.error is not None:
            raise self.error
        self._commit = commit
        self._queued += 1

    def finish(self) -> None:
        """Record that a queued write is committed or has failed."""
        self._done += 1

    def fail(self, error: BaseException) -> None:
        """Refuse all later writes of the run, before `finish`."""
        if self.error is None:
            self.error = error

    async def flush(self) -> None:
        """Wait until all queued writes are committed.

        Raises:
            BaseException: The error of a write of the run; it and all later ones are not stored.
        """
        if self._commit is not None and self._queued != self._done:
            await self._commit()
        if self.error is not None:
            raise self.error

    @asynccontextmanager
    async def flushed(self) -> AsyncIterator[None]:
        """Flush at the end of a block; an error of the block itself takes precedence."""
        try:
            yield
        except BaseException:
            # Shielded, since the session's lock is released next.
            with suppress(Exception), anyio.move_on_after(_FLUSH_S, shield=True):
                await self.flush()
            raise
        await self.flush()
