"""Declares what pruning, export and import need of a database, with the statements that both databases share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from graph_agent.base.errors import OperatorError
from graph_agent.storage.checkpoints.delta_values import At
from graph_agent.storage.checkpoints.format import FORMAT, FORMAT_KEY
from graph_agent.storage.checkpoints.pruning.plan import Row, Rows

Statement = tuple[str, Sequence[Any]]
"""SQL, and a list of its parameters for each execution."""
Confirm = Callable[[], Awaitable[None]]
"""Verifies that no run of the thread has begun; raises otherwise."""
MARK = "graph_agent_pruned"
"""Task id and channel of the note of what a pruning has left of a thread: a write of a checkpoint without an id."""
WRITES_BY_CHANNEL = (
    "SELECT checkpoint_ns, checkpoint_id, channel, count(*), coalesce(sum(length({value})), 0) FROM {writes}"
    " WHERE thread_id = ? GROUP BY checkpoint_ns, checkpoint_id, channel"
)
_THREADS = (
    "SELECT c.thread_id, c.newest, c.number, w.{value} FROM (SELECT thread_id, max(checkpoint_id) AS newest,"
    " count(*) AS number FROM checkpoints GROUP BY thread_id) c LEFT JOIN {writes} w ON w.thread_id = c.thread_id"
    f" AND w.checkpoint_ns = '' AND w.checkpoint_id = '' AND w.task_id = '{MARK}' AND w.idx = 0"
)
_STORED_WRITES = (
    "SELECT checkpoint_ns, checkpoint_id, task_id, coalesce(task_path, ''), channel, type, {value} FROM {writes}"
    " WHERE thread_id = ?"
)
EXTENT = "SELECT coalesce(max(checkpoint_id), ''), count(*) FROM checkpoints WHERE thread_id = ?"
_ALL_WRITES = f"{_STORED_WRITES} ORDER BY checkpoint_ns, checkpoint_id, task_id, idx"
_WRITES_OF = (
    f"{_STORED_WRITES} AND checkpoint_ns = ? AND checkpoint_id IN {{list}} AND channel IN {{list}}"
    " ORDER BY task_path, task_id, idx"
)


class UnreadableCheckpointError(OperatorError):
    """A checkpoint is stored in a form that cannot be read here, e.g. encrypted."""


class ThreadChangedError(Exception):
    """A thread has changed since it was read."""


@dataclass(frozen=True, slots=True)
class ThreadState:
    """How far a thread reaches, by which a pruning recognizes one that has not changed."""

    id: str
    newest: str
    """The highest checkpoint id of all namespaces; empty without a checkpoint."""
    number: int
    """Number of checkpoints."""
    mark: bytes | None = None
    """The stored note of the last pruning; None without one."""


@dataclass(frozen=True, slots=True)
class StoredWrite:
    """One write of a task, as it is stored."""

    namespace: str
    checkpoint_id: str
    task_id: str
    task_path: str
    channel: str
    type: str
    value: bytes


async def no_check() -> None:
    """Verify nothing."""


class Tables(ABC):
    """The tables of LangGraph's savers in one database."""

    @abstractmethod
    async def load(self, thread_id: str) -> dict[str, Rows]:
        """Return the checkpoints of a thread by namespace; raise `UnreadableCheckpointError` if one cannot be read."""

    @abstractmethod
    async def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query.

        It names the table of writes as `{writes}`, its value as `{value}`, parameters as `?`, and a parameter that is a
        list of texts as `{list}`.
        """

    @abstractmethod
    async def apply(
        self, statements: Sequence[Statement], confirm: Confirm = no_check, expected: ThreadState | None = None
    ) -> None:
        """Execute statements in one transaction, in the syntax of `query`, or those of a recorder.

        Raises `ThreadChangedError` if a thread has not the `expected` extent, and what `confirm` raises; nothing is
        stored then.
        """

    @abstractmethod
    def cleaning(self, at: At) -> list[Statement]:
        """Return the statements that remove values of a namespace that no checkpoint refers to any more."""

    @abstractmethod
    async def unused_bytes(self, at: At, gone: Sequence[str]) -> int:
        """Return the bytes that `cleaning` removes once the checkpoints `gone` are removed."""

    @abstractmethod
    def recorder(self, serde: SerializerProtocol) -> tuple[BaseCheckpointSaver[Any], list[Statement]]:
        """Return a saver that stores nothing, and the list of statements that its blocking writes add to."""

    @abstractmethod
    async def replace(
        self, thread_id: str, statements: Sequence[Statement], prefix: str, items: Sequence[tuple[str, Any]]
    ) -> None:
        """Delete a thread and its items in the Store, and store new ones, in one transaction.

        The `statements` store new checkpoints and writes. `prefix` is that of the items in the table of the Store.
        """

    @abstractmethod
    async def size(self) -> int:
        """Return the bytes that the database takes on disk."""

    @abstractmethod
    async def reclaim(self, is_idle: Callable[[], Awaitable[bool]]) -> None:
        """Return free space to the file system without blocking runs; rewrite the database only if `is_idle`."""

    async def threads(self) -> list[ThreadState]:
        """Return all threads, by one query."""
        return [ThreadState(*row) for row in await self.query(_THREADS)]

    async def extent(self, thread_id: str) -> ThreadState:
        """Return how far a thread reaches now."""
        [row] = await self.query(EXTENT, [thread_id])
        return ThreadState(thread_id, *row)

    async def stored_writes(self, thread_id: str) -> list[StoredWrite]:
        """Return all writes of a thread; those of one task are in their order."""
        return [StoredWrite(*row) for row in await self.query(_ALL_WRITES, [thread_id])]

    async def writes_of(self, at: At, ids: Sequence[str], channels: Sequence[str]) -> list[StoredWrite]:
        """Return the writes of checkpoints to some channels; those of one checkpoint are in LangGraph's order."""
        return [StoredWrite(*row) for row in await self.query(_WRITES_OF, [*at, [*ids], [*channels]])]


Written = dict[tuple[str, str], dict[str, tuple[int, int]]]
"""Namespace and checkpoint → channel → number and bytes of its writes."""


def written_of(rows: Sequence[tuple[Any, ...]]) -> Written:
    """Return the rows of `WRITES_BY_CHANNEL` by checkpoint."""
    written: Written = {}
    for namespace, id_, channel, number, size in rows:
        written.setdefault((namespace, id_), {})[channel] = number, int(size)
    return written


def known_deltas(metadata: Mapping[str, Any], *, is_agents: bool) -> frozenset[str]:
    """Return the delta channels that a checkpoint shows: those that LangGraph counts the updates of, and an agent's.

    Raises `UnreadableCheckpointError` for a checkpoint of a newer version.
    """
    if (stored := metadata.get(FORMAT_KEY) or 1) > FORMAT:
        raise UnreadableCheckpointError(
            f"its checkpoints have format {stored}, of a newer version of graph-agent; this version reads {FORMAT}"
        )
    counters = metadata.get("counters_since_delta_snapshot")
    own = ("messages", "events") if is_agents else ()
    return frozenset([*(counters if isinstance(counters, dict) else ()), *own])


def by_namespace(rows: Sequence[tuple[str, Row]]) -> dict[str, Rows]:
    """Return checkpoints by namespace and id."""
    found: dict[str, dict[str, Row]] = {}
    for namespace, row in rows:
        found.setdefault(namespace, {})[row.id] = row
    return dict(found)
