"""Refuses a run's checkpoint writes after another run has continued its session.

A lock can be lost without its holder noticing, so every write is checked against the database in the write's own
transaction. A run may write as long as the newest checkpoint of the thread is the one that it started from or one of
its own. The checkpoint that it started from also records its owner, the run that continues it, because two runs that
resume from the same checkpoint may write to it before either creates a checkpoint.

A deliberate fork from an older checkpoint is not affected: the run loads the newest checkpoint as its base, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import anyio

from graph_agent.base.errors import SessionLostError

OWNER = "graph_agent_owner"
"""Task id of the owner record among a checkpoint's writes; its channel is the id of the run that continues it."""


def owner_in(pending_writes: Sequence[tuple[str, str, Any]] | None) -> str:
    """Return the id of the run that continues a checkpoint; empty without an owner record."""
    return next((channel for task, channel, _ in pending_writes or () if task == OWNER), "")


@dataclass
class _Branch:
    """A run's record of one checkpoint namespace of a thread."""

    base: str | None
    """The newest checkpoint when the run loaded its own; None for a thread without checkpoints."""
    base_owner: str
    base_writes: int | None
    """Number of the base's stored writes at that time; None if not counted."""
    own: set[str] = field(default_factory=set)
    """Ids of the checkpoints that this run has stored, or has tried to store."""
    highest: str = ""
    """The highest of `own`; empty if there is none."""
    committed: str = ""
    """The last of them that is committed; empty if none is."""


class CheckpointFence:
    """Detects writes of other runs to the thread of one run. Thread-safe."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.claims = False
        """Whether the run resumes from the checkpoint that it loads, and is recorded as its owner at once."""
        self._branches: dict[tuple[str, str], _Branch] = {}
        self._expected: dict[str, str | None] = {}
        self.why_lost = ""
        """Why the fence was closed; empty while it is open."""

    def close(self, why: str) -> None:
        """Refuse all further writes, because the run's process lost the session; `why` is for the input's sender."""
        self.why_lost = why

    def check_open(self) -> None:
        """Raise `SessionLostError` if the fence was closed, before the database is queried."""
        if self.why_lost:
            raise SessionLostError(self.why_lost)

    def has_loaded(self, thread_id: str, namespace: str) -> bool:
        """Whether the run has loaded its checkpoint of a namespace."""
        return (thread_id, namespace) in self._branches

    def expect(self, thread_id: str, newest: str | None) -> None:
        """Require a newest checkpoint, or none, in a thread's root namespace when the run loads its base.

        Call it when something is decided by that checkpoint before the run loads it, such as that an input is new: a
        process may be paused in between, and lose its lock.
        """
        self._expected[thread_id] = newest

    def load(self, thread_id: str, namespace: str, newest: str | None, owner: str, writes: int | None) -> None:
        """Record the newest checkpoint of a namespace as the run's base; only the first call has an effect.

        `owner` is that checkpoint's, if any; `writes` is the number of its stored writes, if counted. Raises
        `SessionLostError` when it is not the expected one.
        """
        if (
            namespace == ""
            and (thread_id, namespace) not in self._branches
            and self._expected.get(thread_id, newest) != newest
        ):
            raise self.lost(thread_id, f"its newest checkpoint is {newest}, which was stored after this run began")
        self._branches.setdefault((thread_id, namespace), _Branch(newest, owner, writes))

    def admit(
        self, thread_id: str, namespace: str, newest: str | None, owner: str, new_ids: Sequence[str] = ()
    ) -> bool:
        """Check writes against the newest checkpoint and its owner, if any, within their transaction.

        `new_ids` are ids of the checkpoints to store, in order; empty for writes of an existing one. Returns whether to
        record this run as the newest checkpoint's owner now, after `check_untouched`. Raises `SessionLostError` when
        another run has continued the session.
        """
        self.check_open()
        self.load(thread_id, namespace, newest, owner, None)
        branch = self._branches[thread_id, namespace]
        if newest in branch.own:
            if owner not in ("", self.owner):
                raise self.lost(thread_id, f"run {owner} has continued checkpoint {newest}")
            claims = False
        elif newest != branch.base or (newest is None and branch.committed):
            raise self.lost(thread_id, f"its newest checkpoint is {newest}, which is not of this run")
        else:
            if owner not in (branch.base_owner, self.owner):
                raise self.lost(thread_id, f"run {owner} has continued checkpoint {newest}")
            claims = newest is not None and owner != self.owner
        for new_id in new_ids:
            if newest is not None and new_id <= newest and new_id not in branch.own:
                raise self.lost(thread_id, f"its newest checkpoint {newest} is above the new one, {new_id}")
            branch.own.add(new_id)
            branch.highest = max(branch.highest, new_id)
            newest = max(newest or "", new_id)
        return claims

    def own_newest(self, thread_id: str, namespace: str, new_ids: Sequence[str] = ()) -> list[str]:
        """Return ids, one of which is the newest checkpoint's unless another run has continued the session.

        A saver may check this in the statement of the write, and call `admit` if the check fails. Only `admit` accepts
        a run without a committed checkpoint, and a checkpoint id not above the run's highest.

        The ids are of the last committed checkpoint of this run, and the highest one that it has tried to store; empty
        if the saver must call `admit`. `new_ids` are as of `admit`. Raises `SessionLostError` when it was closed.
        """
        self.check_open()
        branch = self._branches.get((thread_id, namespace))
        if branch is None or not branch.committed:
            return []
        candidates = [branch.committed, branch.highest]
        rising = [branch.highest, *new_ids]
        if any(id_ <= before for before, id_ in pairwise(rising)):
            return []
        branch.own.update(new_ids)
        branch.highest = rising[-1]
        return candidates

    def check_untouched(self, thread_id: str, namespace: str, writes: int) -> None:
        """Check by their number that no writes were added to the base between its loading and this run's first write.

        Raises `SessionLostError` when another run has added writes.
        """
        branch = self._branches[thread_id, namespace]
        if branch.base_writes is not None and writes != branch.base_writes:
            raise self.lost(thread_id, f"another run has written beside checkpoint {branch.base}")

    def store(self, thread_id: str, namespace: str, checkpoint_id: str) -> None:
        """Record that a checkpoint of this run is committed."""
        self._branches[thread_id, namespace].committed = checkpoint_id

    def holds(self, thread_id: str, newest: str | None, owner: str) -> bool:
        """Whether the newest checkpoint of a thread's root namespace is this run's own, or its base."""
        branch = self._branches.get((thread_id, ""))
        if branch is None:
            return False
        if newest in branch.own:
            return owner in ("", self.owner)
        return newest == branch.base and owner in (branch.base_owner, self.owner)

    def end_before(self, thread_id: str, newest: str | None) -> str | None:
        """Return the last checkpoint that this run has stored in a thread's root namespace, if others follow it.

        None if the newest checkpoint is the run's own or its base, or if the saver has no fence. Raises
        `SessionLostError` when others follow, and the run has stored none.
        """
        branch = self._branches.get((thread_id, ""))
        if branch is None or newest in branch.own or newest == branch.base:
            return None
        if not branch.committed:
            raise self.lost(thread_id, f"its newest checkpoint is {newest}, which is not of this run")
        return branch.committed

    @staticmethod
    def lost(thread_id: str, why: str) -> SessionLostError:
        """Make the error for a run whose thread another run has continued."""
        return SessionLostError(
            f"Session {thread_id!r} was continued by another run: {why}. Nothing more of this run is stored. Read the "
            "session, and send the input again if it is not in its history."
        )


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
    """Whether the next checkpoint must be committed before the saver returns: the first, which holds the input, and
    the plan of a call that may write."""
    error: BaseException | None = None
    """Why a write of the run failed; all later writes of the run are refused with it. None if none failed."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the run, which flushes the writes; None if the saver serves every loop."""
    _commit: Callable[[], Awaitable[None]] | None = None
    _queued: int = 0
    _done: int = 0

    def queue(self, commit: Callable[[], Awaitable[None]]) -> None:
        """Record that a write was queued; raise the error of an earlier write of the run."""
        if self.error is not None:
            raise self.error
        self._commit = commit
        self._queued += 1

    def waits(self, source: str | None) -> bool:
        """Whether a checkpoint must be committed before the saver returns; true once for each `must_commit`.

        LangGraph's source `input` is committed with the next one, before the first plan.
        """
        if source == "input":
            return False
        waits, self.must_commit = self.must_commit, False
        return waits

    def finish(self) -> None:
        """Record that a queued write is committed or has failed."""
        self._done += 1

    def fail(self, error: BaseException) -> None:
        """Refuse all later writes of the run, before `finish`."""
        if self.error is None:
            self.error = error

    async def flush(self) -> None:
        """Wait until all queued writes are committed; raise the error of one; it and later ones are not stored."""
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
