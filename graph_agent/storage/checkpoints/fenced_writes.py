"""Defines what the savers in SQLite and PostgreSQL share: addresses, recorded statements, and the base of a run.

The base of a run is the checkpoint that was the newest of its thread when the run began. A fence (`CheckpointFence`)
compares it before each write, and refuses the writes of a run whose session another run has continued.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from graph_agent.core.state.fence import CheckpointFence, owner_in

At = tuple[str, str]
"""The id of a thread and a checkpoint namespace; the namespace is empty for the root graph."""
Statement = tuple[str, Sequence[Any]]
"""SQL of LangGraph's saver, and a list with one tuple of parameters for each execution."""


class StatementRecorder(BaseCheckpointSaver[Any]):
    """A saver of LangGraph that records the SQL of a write in `statements` instead of executing it.

    A subclass also inherits from the saver in question, and returns itself as that saver's cursor. It has no
    connection, so it cannot read.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        # Without a connection, and without the check of the serializer that the saver has made: it takes 50 µs.
        self.serde = serde
        self.statements: list[Statement] = []
        """The recorded statements with their parameters, in the order of the calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the recorded statements; an exception of the block is not suppressed."""

    def execute(self, sql: str, values: Any) -> None:
        """Record one statement with one set of parameters; nothing is executed."""
        self.statements.append((sql, [values]))

    def executemany(self, sql: str, rows: Sequence[Any]) -> None:
        """Record one statement with a set of parameters for each of `rows`; nothing is executed."""
        self.statements.append((sql, rows))


def next_version(current: str | int | None) -> str:
    """Return the version of a channel that follows `current`, in the form of LangGraph's savers.

    The form is a counter of 32 digits, a point and 12 random hexadecimal digits, such as `"00…07.1f3a…"`. The counter
    is one above that of `current`; it is 1 for None, which is the version of a channel that was never written. An
    integer is a version of an older saver of LangGraph.
    """
    # The random part makes the versions of two branches differ. It has 48 bits: LangGraph's 18 digits take 0.2 KB more
    # a turn, since a checkpoint holds about 15 versions.
    number = int(current.split(".")[0]) if isinstance(current, str) else current or 0
    return f"{number + 1:032}.{random.getrandbits(48):012x}"


def at_of(config: RunnableConfig) -> At:
    """Return the thread id, as text, and the checkpoint namespace of a config; the namespace is empty if it is absent.

    Raises `KeyError` if the config has no `thread_id`.
    """
    at = config["configurable"]
    return str(at["thread_id"]), at.get("checkpoint_ns", "")


def record_loaded(fence: CheckpointFence, at: At, found: CheckpointTuple | None) -> None:
    """Record in a run's fence that a checkpoint is the base of the run in a thread and namespace.

    Its id, the run that is recorded as its owner, and the number of its pending writes are recorded. `found` is None if
    the thread has no checkpoint. Only the first call for a namespace has an effect. Raises `SessionLostError` if the
    fence expects another checkpoint there.
    """
    pending = found.pending_writes or [] if found is not None else []
    fence.load(*at, found.checkpoint["id"] if found is not None else None, owner_in(pending), len(pending))
