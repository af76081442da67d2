"""Declares what pruning, export and import need of a database, with the statements that both databases share.

Pruning removes all checkpoints of a session, one LangGraph thread, but the first and the newest. The SQL of this
package names what differs between SQLite and PostgreSQL by placeholders: `{writes}` is the table of writes, `{value}`
its column of values, `?` a parameter, and `{list}` a parameter that is a list of texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from graph_agent.base.errors import OperatorError
from graph_agent.storage.checkpoints.fenced_writes import At, Statement
from graph_agent.storage.checkpoints.format import FORMAT, FORMAT_KEY
from graph_agent.storage.checkpoints.pruning.plan import Row, Rows

Confirm = Callable[[], Awaitable[None]]
"""Verifies that no run of the thread has begun; raises otherwise."""
PRUNED_NOTE = "graph_agent_pruned"
"""Task id and channel of the note of what a pruning has left of a thread: a write of a checkpoint with an empty id."""
WRITES_BY_CHANNEL = (
    "SELECT checkpoint_ns, checkpoint_id, channel, count(*), coalesce(sum(length({value})), 0) FROM {writes}"
    " WHERE thread_id = ? GROUP BY checkpoint_ns, checkpoint_id, channel"
)
"""Number and bytes of the writes of a thread, by namespace, checkpoint and channel."""
_THREADS = (
    "SELECT c.thread_id, c.newest, c.number, w.{value} FROM (SELECT thread_id, max(checkpoint_id) AS newest,"
    " count(*) AS number FROM checkpoints GROUP BY thread_id) c LEFT JOIN {writes} w ON w.thread_id = c.thread_id"
    f" AND w.checkpoint_ns = '' AND w.checkpoint_id = '' AND w.task_id = '{PRUNED_NOTE}' AND w.idx = 0"
)
_STORED_WRITES = (
    "SELECT checkpoint_ns, checkpoint_id, task_id, coalesce(task_path, ''), channel, type, {value} FROM {writes}"
    " WHERE thread_id = ?"
)
EXTENT = "SELECT coalesce(max(checkpoint_id), ''), count(*) FROM checkpoints WHERE thread_id = ?"
"""The highest checkpoint id of a thread, empty without one, and the number of its checkpoints."""
_ALL_WRITES = f"{_STORED_WRITES} ORDER BY checkpoint_ns, checkpoint_id, task_id, idx"
_WRITES_OF = (
    f"{_STORED_WRITES} AND checkpoint_ns = ? AND checkpoint_id IN {{list}} AND channel IN {{list}}"
    " ORDER BY task_path, task_id, idx"
)


class UnreadableCheckpointError(OperatorError):
    """Raised when a checkpoint is stored in a form that pruning cannot read, e.g. encrypted or of a newer version."""


class ThreadChangedError(Exception):
    """Raised when a thread has changed since it was read."""


@dataclass(frozen=True, slots=True)
class ThreadState:
    """The newest checkpoint and the number of checkpoints of a thread; equal values mean that nothing was added."""

    id: str
    newest: str
    """The highest checkpoint id of all namespaces; empty without a checkpoint."""
    number: int
    """Number of checkpoints."""
    mark: bytes | None = None
    """The stored note of the last pruning; None without one."""


@dataclass(frozen=True, slots=True)
class StoredWrite:
    """One write of a task; `type` and `value` are the serialized form."""

    namespace: str
    checkpoint_id: str
    task_id: str
    task_path: str
    channel: str
    type: str
    value: bytes


async def no_check() -> None:
    """Do nothing: the check for a transaction that needs none."""


class Tables(ABC):
    """The tables of LangGraph's savers and Store in one database."""

    @abstractmethod
    async def load(self, thread_id: str) -> dict[str, Rows]:
        """Return namespace → checkpoint id → checkpoint of a thread, all read at one moment; empty for an unknown
        thread.

        Raises `UnreadableCheckpointError` if one cannot be read.
        """

    @abstractmethod
    async def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query with placeholders; `values` are its parameters in order, a list for each
        `{list}`.
        """

    @abstractmethod
    async def apply(
        self, statements: Sequence[Statement], confirm: Confirm = no_check, expected: ThreadState | None = None
    ) -> None:
        """Execute statements in one transaction, which is rolled back if anything fails.

        Args:
            statements: SQL with placeholders, or the recorded SQL of LangGraph's saver.
            confirm: Raises if the transaction must not be committed, e.g. because a lock was lost.
            expected: The state of one thread on which the statements are based; None for no condition.

        Raises:
            ThreadChangedError: If the thread is not in the `expected` state.
        """

    @abstractmethod
    def cleaning(self, at: At) -> list[Statement]:
        """Return the statements that remove the values of a namespace that no checkpoint refers to; empty for
        SQLite.
        """

    @abstractmethod
    async def unused_bytes(self, at: At, gone: Sequence[str]) -> int:
        """Return the bytes that `cleaning` would remove once the checkpoints with the ids `gone` are removed."""

    @abstractmethod
    def recorder(self, serde: SerializerProtocol) -> tuple[BaseCheckpointSaver[Any], list[Statement]]:
        """Return a saver that stores nothing, and the list to which its blocking writes append their statements.

        `serde` converts the values that are written.
        """

    @abstractmethod
    async def replace(
        self, thread_id: str, statements: Sequence[Statement], prefix: str, items: Sequence[tuple[str, Any]]
    ) -> None:
        """Delete a thread and its items in the Store, and store new ones, in one transaction.

        Args:
            thread_id: The thread whose checkpoints and writes are deleted.
            statements: Store the new checkpoints and writes.
            prefix: The namespace of the items in the Store's table, joined by points; all of its items are deleted.
            items: Key and JSON value of each new item.
        """

    @abstractmethod
    async def size(self) -> int:
        """Return the bytes that the tables take on disk now."""

    @abstractmethod
    async def reclaim(self, is_idle: Callable[[], Awaitable[bool]]) -> None:
        """Return free space to the file system without blocking runs for long.

        `is_idle` returns whether no run is in progress; only then may the whole database be rewritten.
        """

    async def threads(self) -> list[ThreadState]:
        """Return the state of each thread, with the note of its last pruning, by one query."""
        return [ThreadState(*row) for row in await self.query(_THREADS)]

    async def extent(self, thread_id: str) -> ThreadState:
        """Return the present state of a thread, without the note of a pruning."""
        [row] = await self.query(EXTENT, [thread_id])
        return ThreadState(thread_id, *row)

    async def stored_writes(self, thread_id: str) -> list[StoredWrite]:
        """Return all writes of a thread, ordered by namespace, checkpoint and task; those of one task in their
        order.
        """
        return [StoredWrite(*row) for row in await self.query(_ALL_WRITES, [thread_id])]

    async def writes_of(self, at: At, ids: Sequence[str], channels: Sequence[str]) -> list[StoredWrite]:
        """Return the writes of the checkpoints `ids` of one namespace to some channels, in the order in which LangGraph
        applies them.
        """
        return [StoredWrite(*row) for row in await self.query(_WRITES_OF, [*at, [*ids], [*channels]])]


Written = dict[tuple[str, str], dict[str, tuple[int, int]]]
"""Namespace and checkpoint id → channel → number and bytes of the checkpoint's writes to it."""


def written_of(rows: Sequence[tuple[Any, ...]]) -> Written:
    """Group the rows of `WRITES_BY_CHANNEL`: (namespace, checkpoint id) → channel → number and bytes of the writes."""
    written: Written = {}
    for namespace, id_, channel, number, size in rows:
        written.setdefault((namespace, id_), {})[channel] = number, int(size)
    return written


def known_deltas(metadata: Mapping[str, Any], *, is_agents: bool) -> frozenset[str]:
    """Return the names of the delta channels of a checkpoint, i.e. of those that store only what each step wrote.

    These are the channels whose updates LangGraph counts in `metadata`, and `messages` and `events` if `is_agents`,
    i.e. the checkpoint is of an agent. Raises `UnreadableCheckpointError` if a newer version of this package stored it.
    """
    if (stored := metadata.get(FORMAT_KEY) or 1) > FORMAT:
        raise UnreadableCheckpointError(
            f"its checkpoints have format {stored}, of a newer version of graph-agent; this version reads {FORMAT}"
        )
    counters = metadata.get("counters_since_delta_snapshot")
    own = ("messages", "events") if is_agents else ()
    return frozenset([*(counters if isinstance(counters, dict) else ()), *own])


def by_namespace(rows: Sequence[tuple[str, Row]]) -> dict[str, Rows]:
    """Group pairs of a namespace and a checkpoint: namespace → checkpoint id → checkpoint."""
    found: dict[str, dict[str, Row]] = {}
    for namespace, row in rows:
        found.setdefault(namespace, {})[row.id] = row
    return dict(found)
