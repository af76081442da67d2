"""Defines what the savers in SQLite and PostgreSQL share: addresses, recorded statements, and the base of a run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from graph_agent.core.runs.fence import CheckpointFence, owner_in

At = tuple[str, str]
"""A thread and a checkpoint namespace."""
Statement = tuple[str, Sequence[Any]]
"""SQL of LangGraph's saver, and a list of its parameters for each execution."""


class StatementRecorder(BaseCheckpointSaver[Any]):
    """The cursor of one of LangGraph's savers, which records the statements of a write instead of executing them.

    A subclass inherits from that saver, too, and is its own cursor.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        # Without a connection, and without the check of the serializer that the saver has made: it takes 50 µs.
        self.serde = serde
        self.statements: list[Statement] = []
        """The statements, in order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the cursor; the statements remain."""

    def execute(self, sql: str, values: Any) -> None:
        """Record a statement."""
        self.statements.append((sql, [values]))

    def executemany(self, sql: str, rows: Sequence[Any]) -> None:
        """Record a statement that is executed for each row."""
        self.statements.append((sql, rows))


def next_version(current: str | int | None) -> str:
    """Return the version of a channel that follows `current`, in the form of LangGraph's savers.

    The versions of two branches differ by its random part. It is 48 bits as 12 digits: LangGraph's 18 take 0.2 KB more
    a turn, as a checkpoint holds about 15 versions.
    """
    number = int(current.split(".")[0]) if isinstance(current, str) else current or 0
    return f"{number + 1:032}.{random.getrandbits(48):012x}"


def at_of(config: RunnableConfig) -> At:
    """Return the thread and the checkpoint namespace of a config."""
    at = config["configurable"]
    return str(at["thread_id"]), at.get("checkpoint_ns", "")


def record_loaded(fence: CheckpointFence, at: At, found: CheckpointTuple | None) -> None:
    """Record the newest checkpoint, with its owner and its writes, as a run's base."""
    pending = found.pending_writes or [] if found is not None else []
    fence.load(*at, found.checkpoint["id"] if found is not None else None, owner_in(pending), len(pending))
