"""Holds counts of which calls followed which in the inputs of an agent, and keeps them in the agent's Store."""

from __future__ import annotations

import hashlib
import json
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

    def count(self, shapes: Collection[str]) -> None:
        """Count one more occurrence of the context, with the shapes of the calls that followed it.

        `shapes` is empty if the input ended. After `MOST_SEEN` occurrences all counts are halved, and above
        `MOST_FOLLOWERS` the rarest shapes are dropped.
        """
        self.seen += 1
        for shape in shapes:
            digest = hashlib.sha256(shape.encode()).hexdigest()[:24]
            self._counts[digest] = self._counts.pop(digest, 0) + 1
            # Kept only now: a value that one user has given once is in no shape.
            if self._counts[digest] >= LEAST_COUNT:
                self._shapes[digest] = shape
        if self.seen >= MOST_SEEN:
            self.seen //= 2
            self._counts = {digest: count // 2 for digest, count in self._counts.items() if count > 1}
        while len(self._counts) > MOST_FOLLOWERS:
            # The first of the smallest is the one that has not followed for the longest time.
            del self._counts[min(self._counts, key=lambda digest: self._counts[digest])]
        self._shapes = {digest: shape for digest, shape in self._shapes.items() if digest in self._counts}

    def likely(self) -> list[str]:
        """Return the shapes that followed often enough to be proposed, the most frequent first."""
        likely = [digest for digest in self._shapes if self._counts[digest] >= LEAST_SHARE * self.seen]
        return [self._shapes[digest] for digest in sorted(likely, key=lambda digest: -self._counts[digest])]

    def as_json(self) -> dict[str, Any]:
        """Return the counts as a dict of JSON values, the form in which the Store keeps them."""
        return {"seen": self.seen, "counts": self._counts, "shapes": self._shapes}


class CallTable:
    """Counts which calls followed each context in the inputs of one agent, in bounded memory.

    With a Store, each context is read at its first use and written after each change. Processes that share a Store
    overwrite each other's newest counts of a context.
    """

    def __init__(self) -> None:
        self._contexts: OrderedDict[Context, Followers] = OrderedDict()

    async def followers(self, context: Context, store: BaseStore | None, agent: str) -> Followers:
        """Return the counts of a context; empty counts for a new context. They are read from the Store if they are not
        in memory.

        A failure of the Store is logged and counts as no stored counts.

        Args:
            store: The agent's Store; None to keep the table in memory alone.
            agent: Name of the agent, which is part of the key in the Store.
        """
        found = self._contexts.get(context)
        if found is None:
            item = None if store is None else await self._guarded(store.aget(_namespace(agent), _key(context)))
            # Another run may have read the same context meanwhile.
            found = self._contexts.setdefault(context, Followers(None if item is None else item.value))
        self._contexts.move_to_end(context)
        while len(self._contexts) > MOST_CONTEXTS:
            self._contexts.popitem(last=False)
        return found

    async def count(self, context: Context, shapes: Collection[str], store: BaseStore | None, agent: str) -> None:
        """Count one more occurrence of a context, and write its counts to the Store; a failure of the Store is logged.

        Args:
            shapes: The shapes of the calls that followed; empty if the input ended.
            store: The agent's Store; None to keep the table in memory alone.
            agent: Name of the agent, which is part of the key in the Store.
        """
        found = await self.followers(context, store, agent)
        found.count(shapes)
        if store is not None:
            await self._guarded(store.aput(_namespace(agent), _key(context), found.as_json(), index=False))

    async def _guarded(self, work: Any) -> Any:
        """Await an operation of the Store and return its result; log a failure and return None."""
        try:
            return await work
        except Exception as error:  # noqa: BLE001 - a Store may raise anything, and the agent works without the table
            log_failure(logger, "The table of calls in the Store", error)
            return None


def _namespace(agent: str) -> tuple[str, ...]:
    """Return the Store namespace of an agent's counts."""
    # A Store accepts no period in a name.
    return "graph_agent", "calls_that_followed", agent.replace(".", "_") or "agent"


def _key(context: Sequence[str]) -> str:
    """Return the key of a context in the Store: a hash of the names of its tools."""
    return hashlib.sha256(json.dumps(context).encode()).hexdigest()[:32]
