"""Holds counts of which calls followed which in the inputs of an agent, and keeps them in the agent's Store."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

from langgraph.store.base import BaseStore

from graph_agent.base._internal.failure_log import get_logger, log_failure

Context = tuple[str, ...]
"""The names of the tools that succeeded in the newest wave, sorted; empty at the begin of an input."""

MOST_CONTEXTS = 256
"""Maximum contexts in memory; the one that was used least recently is dropped first, and read from the Store again."""
MOST_FOLLOWERS = 64
"""Maximum different calls that are counted for one context; the rarest is dropped first."""
MOST_SEEN = 1_000
"""Inputs of one context after which all its counts are halved, so that new habits replace old ones."""
LEAST_COUNT = 2
"""Minimum number of inputs in which a call must have followed a context before it is proposed."""
LEAST_SHARE = 0.5
"""Minimum share of the inputs with a context in which a call must have followed before it is proposed."""
_ROW_S = 300
"""Seconds after its last write from which on a process begins another row."""
_CLOSED_S = 2 * _ROW_S
"""Seconds after its last write from which on no process writes a row any more; twice as long, as clocks differ."""
_MOST_CLOSED = 16
"""Maximum rows of one context that no process writes any more; more are joined to one."""
_MOST_ROWS = 256
"""Maximum rows of one context that are read."""
_PAST = "past"
"""Key of the item that records that stored sessions have been counted."""

logger = get_logger("graph_agent.overlap")


class Followers:
    """Counts of the calls that followed one context, by their shapes.

    A shape is a text that describes a call without its values: the tool, and where the value of each argument stood.

    Args:
        stored: The counts in the form of `as_json`; None for empty ones.
    """

    def __init__(self, stored: dict[str, Any] | None = None) -> None:
        stored = stored or {}
        self.seen: int = stored.get("seen", 0)
        """Number of inputs in which the context occurred, with or without a further call."""
        self._counts: dict[str, int] = dict(stored.get("counts", {}))
        """Hash of a shape → number of inputs in which a call of it followed."""
        self._shapes: dict[str, str] = dict(stored.get("shapes", {}))
        """Hash of a shape → the shape, for those that followed at least `LEAST_COUNT` times."""

    def count(self, shapes: Collection[str], known: Followers | None = None) -> None:
        """Count one more occurrence of the context, with the shapes (tool and arguments, with references to the input
        in place of values) of the calls that followed it.

        The text of a shape is kept from its second occurrence on, so that a value that one user has given once is in no
        stored shape. At `MOST_SEEN` occurrences all counts are halved, which drops those of 1, and above
        `MOST_FOLLOWERS` the rarest shapes are dropped.

        Args:
            shapes: The shapes; empty if the input ended.
            known: Other counts of the context; a shape whose text these have is kept at its first occurrence, too.
        """
        self.seen += 1
        for shape in shapes:
            digest = hashlib.sha256(shape.encode()).hexdigest()[:24]
            self._counts[digest] = self._counts.pop(digest, 0) + 1
            # Kept only now: a value that one user has given once is in no shape.
            if self._counts[digest] >= LEAST_COUNT or (known is not None and digest in known._shapes):
                self._shapes[digest] = shape
        self._limit()

    def add(self, others: Followers) -> None:
        """Add the counts of other inputs with the same context."""
        self.seen += others.seen
        for digest, count in others._counts.items():
            self._counts[digest] = self._counts.get(digest, 0) + count
        self._shapes |= others._shapes
        self._limit()

    def _limit(self) -> None:
        """Halve all counts (1 becomes 0) at `MOST_SEEN` occurrences, and drop the rarest shapes above `MOST_FOLLOWERS`,
        of equally rare ones that which has not followed for the longest time.
        """
        if self.seen >= MOST_SEEN:
            self.seen //= 2
            self._counts = {digest: count // 2 for digest, count in self._counts.items() if count > 1}
        while len(self._counts) > MOST_FOLLOWERS:
            # The first of the smallest is the one that has not followed for the longest time.
            del self._counts[min(self._counts, key=lambda digest: self._counts[digest])]
        self._shapes = {digest: shape for digest, shape in self._shapes.items() if digest in self._counts}

    def likely(self) -> list[str]:
        """Return the shapes (calls with references in place of values) that followed in at least `LEAST_SHARE` of the
        occurrences, and `LEAST_COUNT` times, the most frequent first.
        """
        likely = [digest for digest in self._shapes if self._counts[digest] >= LEAST_SHARE * self.seen]
        return [self._shapes[digest] for digest in sorted(likely, key=lambda digest: -self._counts[digest])]

    def as_json(self) -> dict[str, Any]:
        """Return the counts as a dict of JSON values, the form in which the Store keeps them."""
        return {"seen": self.seen, "counts": self._counts, "shapes": self._shapes}


class _Known:
    """The counts of one context in this process.

    Args:
        stored: The counts in the Store, of all processes.
    """

    def __init__(self, stored: Followers) -> None:
        self.all = stored
        """The counts in the Store when they were read, and those of this process since."""
        self._row, self._own, self._written_s = "", Followers(), 0.0

    def count(self, shapes: Collection[str]) -> None:
        """Count one more occurrence of the context, with the shapes (texts without values) of the calls that followed,
        in both counts.
        """
        self.all.count(shapes)
        self._opened().count(shapes, self.all)

    def add(self, others: Followers) -> None:
        """Add the counts of other inputs with the same context."""
        self.all.add(others)
        self._opened().add(others)

    def _opened(self) -> Followers:
        """Return the counts of the row that this process writes, and mark it as written now.

        A new row is begun if there is none, or if this method was last called more than `_ROW_S` seconds ago.
        """
        if not self._row or time.time() - self._written_s > _ROW_S:
            self._row, self._own = uuid.uuid4().hex, Followers()
        self._written_s = time.time()
        return self._own

    async def write(self, context: Context, store: BaseStore, agent: str) -> None:
        """Write the row of this process to the Store, with the time of its last count.

        Args:
            agent: Name of the agent in the Store.
        """
        value = {**self._own.as_json(), "written_s": int(self._written_s)}
        await store.aput(_namespace(agent, context), self._row, value, index=False)


class CallTable:
    """Counts which calls followed each context in the inputs of one agent, in bounded memory.

    With a Store, each context is read at its first use. Each process writes its own counts to a row of its own, so that
    no process overwrites those of another one; the counts of a context are the sum of its rows.
    """

    def __init__(self) -> None:
        self._contexts: OrderedDict[Context, _Known] = OrderedDict()

    async def followers(self, context: Context, store: BaseStore | None, agent: str) -> Followers:
        """Return the counts of a context, read from the Store if they are not in memory; empty ones for a new context.

        A failure of the Store is logged and counts as no stored counts.

        Args:
            store: The agent's Store; None to keep the table in memory alone.
            agent: Name of the agent, which is part of the key in the Store.
        """
        return (await self._known(context, store, agent)).all

    async def count(self, context: Context, shapes: Collection[str], store: BaseStore | None, agent: str) -> None:
        """Count one more occurrence of a context, and write its counts to the Store; a failure of the Store is logged.

        Args:
            shapes: The shapes of the calls that followed; empty if the input ended.
            store: The agent's Store; None to keep the table in memory alone.
            agent: Name of the agent, which is part of the key in the Store.
        """
        known = await self._known(context, store, agent)
        known.count(shapes)
        if store is not None:
            await self._guarded(known.write(context, store, agent))

    async def take(self, others: CallTable, store: BaseStore | None, agent: str) -> None:
        """Move the counts of another table, which has no Store, to this one, context by context; after a cancellation,
        call it again. A failure of the Store is logged.

        Args:
            agent: Name of the agent in the Store.
        """
        while others._contexts:
            context = next(iter(others._contexts))
            known = await self._known(context, store, agent)
            known.add(others._contexts.pop(context).all)
            if store is not None:
                await self._guarded(known.write(context, store, agent))

    async def has_past(self, store: BaseStore | None, agent: str) -> bool:
        """Whether a process has counted the stored sessions in the Store; False without a Store, or if it fails."""
        item = None if store is None else await self._guarded(store.aget(_namespace(agent), _PAST))
        return item is not None

    async def end_past(self, store: BaseStore | None, agent: str) -> None:
        """Record in the Store that the stored sessions have been counted."""
        if store is not None:
            await self._guarded(store.aput(_namespace(agent), _PAST, {"counted": True}, index=False))

    async def _known(self, context: Context, store: BaseStore | None, agent: str) -> _Known:
        """Return the counts of a context, from memory or else from the Store; a failure of the Store gives empty ones.

        Above `MOST_CONTEXTS` contexts, the least recently used one is dropped from memory.
        """
        found = self._contexts.get(context)
        if found is None:
            stored = None if store is None else await self._guarded(_read(context, store, agent))
            # Another run may have read the same context meanwhile.
            found = self._contexts.setdefault(context, _Known(stored or Followers()))
        self._contexts.move_to_end(context)
        while len(self._contexts) > MOST_CONTEXTS:
            self._contexts.popitem(last=False)
        return found

    async def _guarded(self, work: Any) -> Any:
        """Await an operation of the Store and return its result; log a failure and return None."""
        try:
            return await work
        except Exception as error:  # noqa: BLE001 - a Store may raise anything, and the agent works without the table
            log_failure(logger, "The table of calls in the Store", error)
            return None


async def _read(context: Context, store: BaseStore, agent: str) -> Followers:
    """Return the sum of the rows of a context in the Store, `_MOST_ROWS` at most.

    If there are more than `_MOST_CLOSED` rows that no process writes any more, they are replaced by one row with their
    sum.
    """
    namespace = _namespace(agent, context)
    rows = await store.asearch(namespace, limit=_MOST_ROWS)
    found, joined = Followers(), Followers()
    closed = [row for row in rows if time.time() - row.value["written_s"] > _CLOSED_S]
    for row in rows:
        found.add(Followers(row.value))
    if len(closed) > _MOST_CLOSED:
        for row in closed:
            joined.add(Followers(row.value))
        # Two processes that join the same rows at once write the same one.
        key = hashlib.sha256(" ".join(sorted(row.key for row in closed)).encode()).hexdigest()[:32]
        await store.aput(namespace, key, {**joined.as_json(), "written_s": int(time.time())}, index=False)
        for row in closed:
            await store.adelete(namespace, row.key)
    return found


def _namespace(agent: str, context: Context | None = None) -> tuple[str, ...]:
    """Return the Store namespace of an agent's counts, or of those of one context."""
    # A Store accepts no period in a name.
    name = "graph_agent", "calls_that_followed", agent.replace(".", "_") or "agent"
    return name if context is None else (*name, _key(context))


def _key(context: Sequence[str]) -> str:
    """Return the name of a context in the Store: a hash of the names of its tools."""
    return hashlib.sha256(json.dumps(context).encode()).hexdigest()[:32]
