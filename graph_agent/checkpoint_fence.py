"""Refusing what a run writes when another run has continued its session.

A lock can be lost without its holder noticing, so every write is checked against the database in the write's own
transaction. A run may write as long as the newest checkpoint of the thread is the one that it started from or one of
its own. The checkpoint that it started from also carries a note of the run that continues it, its owner: two runs that
resume from the same checkpoint create no checkpoint that would tell them apart.

A person who goes back to an older checkpoint starts from it with the newest checkpoint in view, so deliberate forks are
not affected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from graph_agent.errors import SessionLostError

OWNER = "graph_agent_owner"
"""Task id of the note, among a checkpoint's writes, of the run that continues it: the channel is the run's id."""


def owner_in(pending_writes: Sequence[tuple[str, str, Any]] | None) -> str:
    """The id of the run that continues a checkpoint; empty without a note."""
    return next((channel for task, channel, _ in pending_writes or () if task == OWNER), "")


@dataclass
class _Branch:
    """What a run knows of one namespace of a thread."""

    base: str | None
    """The newest checkpoint when the run loaded its own; None for a thread without checkpoints."""
    base_owner: str
    base_writes: int | None
    """Rows stored beside the base at that time; None where they were not counted."""
    own: set[str] = field(default_factory=set)
    """Ids of the checkpoints that this run has stored, or tries to store."""
    highest: str = ""
    """The highest of `own`; empty for none."""
    committed: str = ""
    """The last of them that is committed; empty for none."""


class CheckpointFence:
    """What one run knows of its thread, to detect writes of other runs. Any thread may use it.

    Args:
        owner: The run's id.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.claims = False
        """Whether the run resumes from the checkpoint that it loads, and is noted as its owner at once."""
        self._branches: dict[tuple[str, str], _Branch] = {}
        self._why_lost = ""

    def close(self, why: str) -> None:
        """Admit nothing any more, because the run's process no longer holds the session.

        Args:
            why: A sentence for the person whose input it was.
        """
        self._why_lost = why

    def check_open(self) -> None:
        """Check that the run's process holds the session as far as is known; to be called before a database is asked.

        Raises:
            SessionLostError: When it was closed.
        """
        if self._why_lost:
            raise SessionLostError(self._why_lost)

    def has_loaded(self, thread_id: str, namespace: str) -> bool:
        """Whether the run has loaded its checkpoint of a namespace."""
        return (thread_id, namespace) in self._branches

    def load(self, thread_id: str, namespace: str, newest: str | None, owner: str, writes: int | None) -> None:
        """Note the newest checkpoint of a namespace when the run starts from it; only the first call counts.

        Args:
            thread_id: The thread.
            namespace: The checkpoint namespace.
            newest: The id of its newest checkpoint; None for none.
            owner: The run that is noted as that checkpoint's owner; empty for none.
            writes: How many rows are stored beside it; None where they were not counted.
        """
        self._branches.setdefault((thread_id, namespace), _Branch(newest, owner, writes))

    def admit(self, thread_id: str, namespace: str, newest: str | None, owner: str, new_id: str | None = None) -> bool:
        """Check a write against the newest checkpoint, within the transaction of the write.

        Args:
            thread_id: The thread.
            namespace: The checkpoint namespace.
            newest: The id of its newest checkpoint; None for none.
            owner: The run that is noted as that checkpoint's owner; empty for none.
            new_id: The id of the checkpoint to store; None for writes beside one that is there.

        Returns:
            Whether this run is to be noted as the newest checkpoint's owner now, once `untouched` is checked.

        Raises:
            SessionLostError: When another run has continued the session.
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
        if new_id is not None:
            if newest is not None and new_id <= newest and new_id not in branch.own:
                raise self.lost(thread_id, f"its newest checkpoint {newest} is above the new one, {new_id}")
            branch.own.add(new_id)
            branch.highest = max(branch.highest, new_id)
        return claims

    def own_newest(self, thread_id: str, namespace: str, new_id: str | None = None) -> list[str]:
        """Ids of which one is the newest checkpoint's unless another run has continued the session.

        A saver may check this in the statement of the write, and call `admit` when it does not hold: a run without a
        committed checkpoint, and one that goes back, are admitted there alone.

        Args:
            thread_id: The thread.
            namespace: The checkpoint namespace.
            new_id: The id of the checkpoint to store; None for writes beside one that is there.

        Returns:
            The last committed checkpoint of this run, and the last one that it tries to store; empty where `admit` has
            to be called.

        Raises:
            SessionLostError: When it was closed.
        """
        self.check_open()
        branch = self._branches.get((thread_id, namespace))
        if branch is None or not branch.committed or (new_id is not None and new_id <= branch.highest):
            return []
        candidates = [branch.committed, branch.highest]
        if new_id is not None:
            branch.own.add(new_id)
            branch.highest = new_id
        return candidates

    def check_untouched(self, thread_id: str, namespace: str, writes: int) -> None:
        """Check that nothing was stored beside the newest checkpoint between its loading and this run's first write.

        Args:
            thread_id: The thread.
            namespace: The checkpoint namespace.
            writes: How many rows are stored beside it now.

        Raises:
            SessionLostError: When another run has stored something.
        """
        branch = self._branches[thread_id, namespace]
        if branch.base_writes is not None and writes != branch.base_writes:
            raise self.lost(thread_id, f"another run has written beside checkpoint {branch.base}")

    def store(self, thread_id: str, namespace: str, checkpoint_id: str) -> None:
        """Note that a checkpoint of this run is committed."""
        self._branches[thread_id, namespace].committed = checkpoint_id

    def holds(self, thread_id: str, newest: str | None, owner: str) -> bool:
        """Whether the newest checkpoint of a thread's root namespace is this run's own, or the one it started from.

        Args:
            thread_id: The thread.
            newest: As for `admit`.
            owner: As for `admit`.
        """
        branch = self._branches.get((thread_id, ""))
        if branch is None:
            return False
        if newest in branch.own:
            return owner in ("", self.owner)
        return newest == branch.base and owner in (branch.base_owner, self.owner)

    def end_before(self, thread_id: str, newest: str | None) -> str | None:
        """The last checkpoint that this run has stored in a thread's root namespace, once others follow it.

        Args:
            thread_id: The thread.
            newest: The id of its newest checkpoint; None for none.

        Returns:
            Its id; None while the newest one is the run's own, or the one it started from, and for a saver that is not
            fenced.

        Raises:
            SessionLostError: When others follow, and the run has stored none.
        """
        branch = self._branches.get((thread_id, ""))
        if branch is None or newest in branch.own or newest == branch.base:
            return None
        if not branch.committed:
            raise self.lost(thread_id, f"its newest checkpoint is {newest}, which is not of this run")
        return branch.committed

    @staticmethod
    def lost(thread_id: str, why: str) -> SessionLostError:
        """The error for a run whose thread another run has continued."""
        return SessionLostError(
            f"Session {thread_id!r} was continued by another run: {why}. Nothing more of this run is stored. Read the "
            "session, and send the input again if it is not in its history."
        )
