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
    """Return the id of the run that continues a checkpoint, from the checkpoint's writes; empty if none is recorded."""
    return next((channel for task, channel, _ in pending_writes or () if task == OWNER), "")


@dataclass
class _Branch:
    """A run's record of one checkpoint namespace of a thread: the checkpoint it started from, and those it stored."""

    base: str | None
    """Id of the newest checkpoint when the run loaded its start; None for a namespace without checkpoints."""
    base_owner: str
    """Id of the run recorded as the owner of `base` at that time; empty if there was none."""
    base_writes: int | None
    """Number of stored writes of `base` at that time; None if they were not counted."""
    own: set[str] = field(default_factory=set)
    """Ids of the checkpoints that this run has stored, or has tried to store."""
    highest: str = ""
    """The highest of `own`; empty if there is none."""
    committed: str = ""
    """Id of the newest checkpoint in `own` that is committed; empty if none is."""


class CheckpointFence:
    """Detects that another run has written to the thread of this run. Thread-safe.

    A saver calls it with what the database shows: `load` when the run reads its checkpoint, then `admit` (or the
    cheaper `own_newest`) in the transaction of each write, and `store` after a commit.

    Args:
        owner: Id of this run.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.claims = False
        """Whether the run resumes from the checkpoint that it loads, and is recorded as its owner at once."""
        self._branches: dict[tuple[str, str], _Branch] = {}
        self._expected: dict[str, str | None] = {}
        self.why_lost = ""
        """Why the fence was closed, as a message for a user; empty while it is open."""

    def close(self, why: str) -> None:
        """Refuse all further writes of the run, because its process lost the session.

        Args:
            why: Message of the `SessionLostError` for each refused write; the sender of the input reads it.
        """
        self.why_lost = why

    def check_open(self) -> None:
        """Raise `SessionLostError` if the fence was closed. It needs no database query."""
        if self.why_lost:
            raise SessionLostError(self.why_lost)

    def has_loaded(self, thread_id: str, namespace: str) -> bool:
        """Whether the run has loaded the checkpoint that it starts from in this namespace."""
        return (thread_id, namespace) in self._branches

    def expect(self, thread_id: str, newest: str | None) -> None:
        """Require that `newest` is still the newest checkpoint of a thread's root namespace when the run loads its
        base.

        Call it when a decision, such as "this input is new", was based on that checkpoint before the run loads it: a
        process may be paused in between and lose its lock. `load` then raises `SessionLostError` if another checkpoint
        is newest.

        Args:
            newest: Id of the checkpoint; None requires a thread without checkpoints.
        """
        self._expected[thread_id] = newest

    def load(self, thread_id: str, namespace: str, newest: str | None, owner: str, writes: int | None) -> None:
        """Record the newest checkpoint of a namespace as the run's base; calls after the first have no effect.

        Args:
            newest: Id of that checkpoint; None if the namespace has none.
            owner: Id of the run that has resumed from that checkpoint (see `owner_in`); empty if none is recorded.
            writes: Number of its stored writes; None if they were not counted.

        Raises:
            SessionLostError: The namespace is the root, and it is not the checkpoint required by `expect`.
        """
        if (
            namespace == ""
            # Subgraphs have namespaces of their own, which no decision before the run was based on.
            and (thread_id, namespace) not in self._branches
            and self._expected.get(thread_id, newest) != newest
        ):
            raise self.lost(thread_id, f"its newest checkpoint is {newest}, which was stored after this run began")
        # A run reads its checkpoint several times, and later reads may find its own newer ones.
        self._branches.setdefault((thread_id, namespace), _Branch(newest, owner, writes))

    def admit(
        self, thread_id: str, namespace: str, newest: str | None, owner: str, new_ids: Sequence[str] = ()
    ) -> bool:
        """Check, in the transaction of a write, that this run may write to the namespace; record the new checkpoints as
        its own.

        The newest checkpoint must be one of the run's own or the one that it started from, and no other run its owner.

        Args:
            thread_id: The thread.
            namespace: Checkpoint namespace; empty for the root.
            newest: Id of the newest checkpoint in the database; None if there is none.
            owner: Id of the run that has resumed from that checkpoint (see `owner_in`); empty if none is recorded.
            new_ids: Ids of the checkpoints to store, in ascending order; empty for pending writes of a stored
                checkpoint.

        Returns:
            Whether this run resumes from `newest` and is not recorded as its owner yet. The saver must then call
            `check_untouched`, and record it.

        Raises:
            SessionLostError: Another run has continued the session, a new id is not above the newest checkpoint, or the
                fence was closed.
        """
        self.check_open()
        self.load(thread_id, namespace, newest, owner, None)
        branch = self._branches[thread_id, namespace]
        if newest in branch.own:
            if owner not in ("", self.owner):
                raise self.lost(thread_id, f"run {owner} has continued checkpoint {newest}")
            claims = False
        # A thread that was deleted during the run has no checkpoint, as if it had never been used.
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
        """Return two ids, one of which must be the newest in the database, so that the run may write without a call of
        `admit`.

        A saver compares them in the statement of the write itself, which saves a query, and calls `admit` if none
        matches. They are the newest checkpoint that this run has committed, and the highest one that it has tried to
        store. The new ids are recorded as the run's own.

        Args:
            thread_id: The thread.
            namespace: Checkpoint namespace; empty for the root.
            new_ids: Ids of the checkpoints to store, in ascending order; empty for pending writes of a stored
                checkpoint.

        Returns:
            The ids. Empty, and nothing is recorded, if the saver must call `admit` at once: the run has no committed
            checkpoint, or the new ids do not rise above the run's highest.

        Raises:
            SessionLostError: The fence was closed.
        """
        self.check_open()
        branch = self._branches.get((thread_id, namespace))
        if branch is None or not branch.committed:
            return []
        candidates = [branch.committed, branch.highest]
        rising = [branch.highest, *new_ids]
        # The statement of the write compares only the newest id, so the ids must rise.
        if any(id_ <= before for before, id_ in pairwise(rising)):
            return []
        branch.own.update(new_ids)
        branch.highest = rising[-1]
        return candidates

    def check_untouched(self, thread_id: str, namespace: str, writes: int) -> None:
        """Compare the number of stored writes of the base with the number when the run loaded it.

        Args:
            thread_id: The thread of the base.
            namespace: The namespace of the base.
            writes: The number now. Ignored if the number was not counted at the loading.

        Raises:
            SessionLostError: The numbers differ, so another run has added writes.
        """
        branch = self._branches[thread_id, namespace]
        # The owner record is written only now, so an earlier writer is visible by its writes alone.
        if branch.base_writes is not None and writes != branch.base_writes:
            raise self.lost(thread_id, f"another run has written beside checkpoint {branch.base}")

    def store(self, thread_id: str, namespace: str, checkpoint_id: str) -> None:
        """Record that a checkpoint of this run is committed. The namespace must have been loaded."""
        self._branches[thread_id, namespace].committed = checkpoint_id

    def holds(self, thread_id: str, newest: str | None, owner: str) -> bool:
        """Whether the newest checkpoint of a thread's root namespace belongs to this run: stored by it, or its base.

        False if the run has loaded nothing there, and if another run is the checkpoint's owner.

        Args:
            newest: Id of the newest checkpoint in the database; None if there is none.
            owner: Id of the run that has resumed from that checkpoint (see `owner_in`); empty if none is recorded.
        """
        branch = self._branches.get((thread_id, ""))
        if branch is None:
            return False
        if newest in branch.own:
            return owner in ("", self.owner)
        return newest == branch.base and owner in (branch.base_owner, self.owner)

    def end_before(self, thread_id: str, newest: str | None) -> str | None:
        """Return the id of this run's newest committed checkpoint in the root namespace, if other runs stored later.

        None if the newest checkpoint is the run's own or its base, or if the saver does not use the fence.

        Args:
            newest: Id of the newest checkpoint in the database; None if there is none.

        Raises:
            SessionLostError: Other runs stored later checkpoints, and this run has stored none.
        """
        branch = self._branches.get((thread_id, ""))
        if branch is None or newest in branch.own or newest == branch.base:
            return None
        if not branch.committed:
            raise self.lost(thread_id, f"its newest checkpoint is {newest}, which is not of this run")
        return branch.committed

    @staticmethod
    def lost(thread_id: str, why: str) -> SessionLostError:
        """Create the error for a run whose thread another run has continued.

        Args:
            why: Clause that follows "was continued by another run:" in the message.
        """
        return SessionLostError(
            f"Session {thread_id!r} was continued by another run: {why}. Nothing more of this run is stored. Read the "
            "session, and send the input again if it is not in its history."
        )


_FLUSH_S = 10.0
"""Maximum seconds to wait for queued writes when a run ends with an error or is cancelled."""


@runtime_checkable
class SupportsDeferral(Protocol):
    """A checkpointer that can queue a run's writes and commit them later."""

    defers_writes: bool
    """Whether a request within a run that has `DeferredWrites` may return before its write is committed."""


def defers_writes(saver: object) -> bool:
    """Whether a checkpointer can queue a run's writes and commit them later."""
    return isinstance(saver, SupportsDeferral) and saver.defers_writes


@dataclass(eq=False)
class DeferredWrites:
    """The queued checkpoint writes of one run: counts them, holds their first error, and waits for them.

    The checkpointer calls `queue`, `finish` and `fail`; the SQLite one from its own thread.
    """

    namespace: str = ""
    """Checkpoint namespace of the run; a graph inside the run defers nothing under `durability="sync"`."""
    must_commit: bool = True
    """Whether the next checkpoint must be committed before the checkpointer returns: the first one, which holds the
    input, and a plan with a call that may write."""
    error: BaseException | None = None
    """The first error of a write of the run, raised for all later writes; None if none failed."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the run, on which the writes are committed; None if the checkpointer serves every loop."""
    _commit: Callable[[], Awaitable[None]] | None = None
    _queued: int = 0
    _done: int = 0

    def queue(self, commit: Callable[[], Awaitable[None]]) -> None:
        """Count a queued write. If an earlier write of the run failed, raise its error and count nothing.

        Args:
            commit: Commits all queued writes of the run; `flush` awaits the newest one given.
        """
        if self.error is not None:
            raise self.error
        self._commit = commit
        self._queued += 1

    def waits(self, source: str | None) -> bool:
        """Whether a checkpoint must be committed before the checkpointer returns; True once after `must_commit` was
        set.

        Args:
            source: LangGraph's `source` of the checkpoint's metadata. For `input` the result is False and `must_commit`
                stays set, since that checkpoint is committed together with the next, before the first plan.
        """
        if source == "input":
            return False
        waits, self.must_commit = self.must_commit, False
        return waits

    def finish(self) -> None:
        """Count a queued write as done, whether committed or failed."""
        self._done += 1

    def fail(self, error: BaseException) -> None:
        """Record an error of a write, so that all later writes of the run are refused; call it before `finish`."""
        if self.error is None:
            self.error = error

    async def flush(self) -> None:
        """Commit the queued writes, if any, and wait for them. Raises the error of the run's first failed write, also
        if none is queued.
        """
        if self._commit is not None and self._queued != self._done:
            await self._commit()
        if self.error is not None:
            raise self.error

    @asynccontextmanager
    async def flushed(self) -> AsyncIterator[None]:
        """Flush at the end of an `async with` block, and raise the error of a failed write.

        If the block raises or is cancelled, its own exception is raised; the flush then takes at most `_FLUSH_S`
        seconds, and its errors are ignored.
        """
        try:
            yield
        except BaseException:
            # Shielded, since the session's lock is released next.
            with suppress(Exception), anyio.move_on_after(_FLUSH_S, shield=True):
                await self.flush()
            raise
        await self.flush()
