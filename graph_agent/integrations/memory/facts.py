"""Reads and changes the facts of one caller in LangGraph's Store.

A fact is an item `{"content": text}` under the caller's namespace, with a UUID as its key. A forgotten fact leaves a
tombstone, an item without content in another namespace, so that events that name its id can be explained.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore, GetOp, Item, PutOp, SearchItem

from graph_agent.base._internal.text import as_text, clean
from graph_agent.base.errors import ConfigError, InputError
from graph_agent.base.errors import UnknownFactError as UnknownFactError  # `graph_agent.memory` exports it
from graph_agent.base.settings.config import AgentContext, coerce_context

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

ROOT = "memories"
"""First label of the namespaces of facts."""
_FORGOTTEN = "forgotten_memories"
"""First label of the namespaces of tombstones."""
_MOST_FACTS = 10_000
MAX_CHARS = 2_000
"""Maximum characters of a fact."""
_UNKNOWN = "There is no fact {!r}; list the facts to see their ids."
_NO_CALLER = (
    "memory: this run has no authenticated caller, whose facts it could read. In a program, pass the user that you "
    "have authenticated in the run's context: context={'caller': 'alice'}; `graph-agent serve` takes the name of the "
    "API key, LangGraph's server the user of its authentication."
)


Find: TypeAlias = Callable[[tuple[str, ...], str, int, int], Awaitable[list[SearchItem]]]
"""Returns the items of a namespace that fit a text, the best first: namespace, text, limit, offset."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a user."""

    id: str
    """UUID of the fact."""
    content: str
    """The text; empty for a forgotten fact."""
    updated: str
    """When it was last changed or forgotten: ISO 8601, UTC."""
    forgotten: bool = False
    """Whether it was forgotten, so that only this tombstone is left."""
    untrusted: Sequence[str] = ()
    """The parts of the text that an agent with `origins` took from untrusted text when it kept the fact, as tokens
    joined by spaces; empty if there are none, or if no such agent kept it."""


def namespace_of(caller: str) -> tuple[str, str]:
    """Return the Store's namespace of a caller's facts: `ROOT`, and a hash of the caller's name.

    A hash, because labels may hold no period, and because a search in a Store also finds longer namespaces.
    """
    return ROOT, _label(caller)


def user_of_run(runtime: Runtime[Any]) -> str:
    """Return the authenticated caller of a run.

    In LangGraph's server, it is the user of the server's authentication, since a client may write the context there. In
    a program, it is the `caller` of the run's context.

    Raises:
        ConfigError: The run has no caller.
    """
    if (server := runtime.server_info) is not None:
        found = server.user.identity if server.user is not None else None
    else:
        context = coerce_context(runtime.context, AgentContext)
        found = context.caller if context is not None else None
    if not found:
        raise ConfigError(_NO_CALLER)
    return found


class Memory:
    """Facts of users in an open Store, and how an agent uses them; `open_memory` opens one.

    Args:
        store: The Store.
        find: Searches facts by their words; None if the Store searches them by vectors.
        recall: Maximum number of facts that are added to the requests of an input; 0 for none.
        extract: Whether the agent's model extracts facts from each input after its answer, by a further request.
    """

    def __init__(self, store: BaseStore, find: Find | None = None, *, recall: int = 5, extract: bool = False) -> None:
        self._store = store
        self._find = find
        self.most = recall
        self.extracts = extract

    @property
    def tools(self) -> Sequence[BaseTool]:
        """The tools `manage_memory` and `search_memory`; raises `ImportError` without the extra `memory`."""
        # Imported here: it loads langmem, which takes a second, and which listing and editing facts does not need.
        from graph_agent.integrations.memory.tools import memory_tools

        return memory_tools(self)

    def caller_of(self, runtime: Runtime[Any]) -> str:
        """Return the authenticated caller of a run; raise `ConfigError` if it has none."""
        return user_of_run(runtime)

    async def facts(self, caller: str, search: str = "", *, limit: int = 100, offset: int = 0) -> list[Fact]:
        """Return facts of a caller: those that fit `search`, the best first; for an empty text all, newest first.

        At most `limit` are returned, after the first `offset` ones.
        """
        return [_fact(item) for item in await self.found(caller, search, limit=limit, offset=offset)]

    async def found(self, caller: str, search: str = "", *, limit: int = 100, offset: int = 0) -> list[SearchItem]:
        """Return the items of the Store behind the facts that `facts` returns, in the same order.

        Args:
            caller: The user.
            search: Text to search, by words or by vectors; empty for all facts, the newest first. Of more than
                `_MOST_FACTS` facts, some are not found without a text.
            limit: Maximum number of items.
            offset: Number of items to skip.
        """
        namespace = namespace_of(caller)
        if search and self._find is not None:
            return await self._find(namespace, search, limit, offset)
        if search:
            return await self._store.asearch(namespace, query=search, limit=limit, offset=offset)
        # A Store returns items in no order that both databases share, and SQLite's times are whole seconds.
        items = await self._store.asearch(namespace, limit=_MOST_FACTS)
        items.sort(key=lambda item: (item.updated_at, item.value.get("at", 0), item.key), reverse=True)
        return items[offset : offset + limit]

    async def item(self, caller: str, id_: str) -> Item | None:
        """Return the item of a fact; None if the caller has none with this id."""
        return await self._store.aget(namespace_of(caller), clean(id_))

    async def recall(self, caller: str, text: str, *, most: int | None = None) -> list[Fact]:
        """Return the facts for an input: first those that fit its text, then the newest, each once.

        Args:
            caller: The user.
            text: The text of the input; a blank one gives the newest facts only.
            most: Maximum number of facts; None for the memory's `recall`, 0 for none.
        """
        most = self.most if most is None else most
        if not most:
            return []
        found = await self.facts(caller, text, limit=most) if text.strip() else []
        if len(found) < most:
            known = {fact.id for fact in found}
            newest = await self.facts(caller, limit=most)
            found += [fact for fact in newest if fact.id not in known]
        return found[:most]

    async def get(self, caller: str, ids: Iterable[str]) -> dict[str, Fact]:
        """Return facts of a caller by id; ids that the caller never had are left out.

        A forgotten fact has no content, `forgotten` set, and the time at which it was forgotten.
        """
        wanted = list(dict.fromkeys(ids))
        namespaces = (namespace_of(caller), (_FORGOTTEN, _label(caller)))
        ops = [GetOp(namespace, clean(id_)) for id_ in wanted for namespace in namespaces]
        found: list[Any] = await self._store.abatch(ops)
        facts: dict[str, Fact] = {}
        for id_, item, tombstone in zip(wanted, found[::2], found[1::2], strict=True):
            if item is not None:
                facts[id_] = _fact(item)
            elif tombstone is not None:
                facts[id_] = Fact(id_, "", tombstone.value["at"], forgotten=True)
        return facts

    async def keep(self, caller: str, content: object, id_: str | None = None, *, untrusted: Sequence[str] = ()) -> str:
        """Store a fact, and return its id.

        NUL characters and lone surrogates, which no database stores, become U+FFFD; white space at the ends is removed.

        Args:
            caller: Id of the user.
            content: The text.
            id_: Id of the fact to replace, or to create if it does not exist; None or empty for a new id. A fact of
                another caller with the same id is not touched.
            untrusted: The parts of the text that come from untrusted text, as `Fact.untrusted` has them.

        Raises:
            InputError: `content` is no text, or the text is empty or longer than `MAX_CHARS`.
            UnknownFactError: The fact with this id was forgotten, also while this runs.
        """
        if not isinstance(content, str):
            raise InputError(f"content={content!r}: a fact needs a text; give it as `content`.")
        text = clean(content).strip()
        if not text or len(text) > MAX_CHARS:
            raise InputError(f"A fact has 1 to {MAX_CHARS:,} characters; this one has {len(text):,}. Write it shorter.")
        id_ = clean(id_ or str(uuid.uuid4()))  # PostgreSQL refuses NUL
        await self._refuse_forgotten(caller, id_)
        value = {"content": text, "at": time.time_ns(), **({"untrusted": [*untrusted]} if untrusted else {})}
        await self._store.aput(namespace_of(caller), id_, value)
        try:
            # A concurrent `forget` stores its tombstone before it deletes: either this finds it, or that deletes this.
            await self._refuse_forgotten(caller, id_)
        except UnknownFactError:
            await self._store.adelete(namespace_of(caller), id_)
            raise
        return id_

    async def edit(self, caller: str, id_: str, content: str) -> Fact:
        """Replace the text of a fact, and return the fact.

        Raises:
            UnknownFactError: The caller has no such fact.
            InputError: The text is empty or too long.
        """
        if await self.item(caller, id_) is None:
            raise UnknownFactError(_UNKNOWN.format(id_))
        await self.keep(caller, content, id_)
        return (await self.get(caller, [id_]))[id_]

    async def forget(self, caller: str, id_: str) -> None:
        """Delete a fact with its vectors, and leave a tombstone; a fact that is forgotten already stays so.

        Raises:
            UnknownFactError: The caller never had a fact with this id.
        """
        known = (await self.get(caller, [id_])).get(id_)
        if known is None:
            raise UnknownFactError(_UNKNOWN.format(id_))
        if known.forgotten:
            return
        at = datetime.now(UTC).isoformat(timespec="seconds")
        # One after the other, as `keep` needs it: a Store runs the deletions of a batch first.
        await self._store.aput((_FORGOTTEN, _label(caller)), id_, {"at": at}, index=False)
        await self._store.adelete(namespace_of(caller), id_)

    async def erase(self, caller: str) -> None:
        """Delete all facts of a caller with their vectors, and the tombstones of forgotten ones."""
        for namespace in (namespace_of(caller), (_FORGOTTEN, _label(caller))):
            # In rounds, as one search returns at most this number.
            while found := await self._store.asearch(namespace, limit=_MOST_FACTS):
                await self._store.abatch([PutOp(namespace, item.key, None) for item in found])

    async def _refuse_forgotten(self, caller: str, id_: str) -> None:
        """Raise `UnknownFactError` if the caller has forgotten the fact with this id."""
        if await self._store.aget((_FORGOTTEN, _label(caller)), id_) is not None:
            raise UnknownFactError(_UNKNOWN.format(id_))


def _label(caller: str) -> str:
    """Return the label of a caller in namespaces: the SHA-256 of the name, in hexadecimal digits."""
    return hashlib.sha256(caller.encode("utf-8", "surrogatepass")).hexdigest()


def _fact(item: Item | SearchItem) -> Fact:
    """Return an item of the Store as a fact; one without content has an empty text."""
    value: Mapping[str, Any] = item.value
    updated = item.updated_at.astimezone(UTC).isoformat(timespec="seconds")
    return Fact(item.key, as_text(value.get("content", "")), updated, untrusted=(*value.get("untrusted", ()),))
