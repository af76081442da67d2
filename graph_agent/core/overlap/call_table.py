"""Holds the counts of which calls followed which in the inputs of an agent, and keeps them in its Store."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

from langgraph.store.base import BaseStore

from graph_agent.base._internal.failure_log import get_logger, log_failure

Context = tuple[str, ...]
"""The tools of the newest wave, sorted; empty at the begin of an input."""

MOST_CONTEXTS = 256
"""Maximum contexts in memory; that of the oldest use is dropped first, and read from the Store again."""
MOST_FOLLOWERS = 64
"""Maximum calls of one context that are counted; the rarest is dropped first."""
MOST_SEEN = 1_000
"""Inputs of one context after which all its counts are halved, so that new habits replace old ones."""
LEAST_COUNT = 2
"""Inputs in which a call must have followed before it is proposed."""
LEAST_SHARE = 0.5
"""Share of the inputs of a context in which it must have."""

logger = get_logger("graph_agent.overlap")


class Followers:
    """What followed one context."""

    def __init__(self, stored: dict[str, Any] | None = None) -> None:
        stored = stored or {}
        self.seen: int = stored.get("seen", 0)
        """Number of times that something followed."""
        self._counts: dict[str, int] = dict(stored.get("counts", {}))
        """Digest of a call's shape → number of times that it followed."""
        self._shapes: dict[str, str] = dict(stored.get("shapes", {}))
        """Digest → shape, for those that followed `LEAST_COUNT` times."""

    def count(self, shapes: Collection[str]) -> None:
        """Count the calls that have followed once more; none if the input ended."""
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
        """Return the shapes of the calls that are likely to follow, the likeliest first."""
        likely = [digest for digest in self._shapes if self._counts[digest] >= LEAST_SHARE * self.seen]
        return [self._shapes[digest] for digest in sorted(likely, key=lambda digest: -self._counts[digest])]

    def as_json(self) -> dict[str, Any]:
        """Return the counts as the Store keeps them."""
        return {"seen": self.seen, "counts": self._counts, "shapes": self._shapes}


class CallTable:
    """What followed what in the inputs of one agent, in bounded memory.

    With a Store, each context is read at its first use and written after each change, whatever the number of others.
    Processes that share a Store overwrite each other's newest counts of a context.
    """

    def __init__(self) -> None:
        self._contexts: OrderedDict[Context, Followers] = OrderedDict()

    async def followers(self, context: Context, store: BaseStore | None, agent: str) -> Followers:
        """Return what followed a context.

        Args:
            context: The context.
            store: The agent's Store; None to keep the table in memory alone.
            agent: Name of the agent, whose inputs count.
        """
        found = self._contexts.get(context)
        if found is None:
            item = None if store is None else await self._guarded(store.aget(_namespace(agent), _key(context)))
            found = self._contexts.setdefault(context, Followers(None if item is None else item.value))
        self._contexts.move_to_end(context)
        while len(self._contexts) > MOST_CONTEXTS:
            self._contexts.popitem(last=False)
        return found

    async def count(self, context: Context, shapes: Collection[str], store: BaseStore | None, agent: str) -> None:
        """Count what has followed a context once more; parameters are those of `followers`."""
        found = await self.followers(context, store, agent)
        found.count(shapes)
        if store is not None:
            await self._guarded(store.aput(_namespace(agent), _key(context), found.as_json(), index=False))

    async def _guarded(self, work: Any) -> Any:
        """Await work of the Store; None if it fails, which is logged."""
        try:
            return await work
        except Exception as error:  # noqa: BLE001 - a Store may raise anything, and the agent works without the table
            log_failure(logger, "The table of calls in the Store", error)
            return None


def _namespace(agent: str) -> tuple[str, ...]:
    # A Store accepts no period in a name.
    return "graph_agent", "calls_that_followed", agent.replace(".", "_") or "agent"


def _key(context: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(context).encode()).hexdigest()[:32]
