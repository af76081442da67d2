"""Conversations: named sessions whose items clients can list and add to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from langgraph.store.base import SearchItem
from typing_extensions import TypedDict

from graph_agent.server.admission.keys import Caller
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.hosting.host import Host
from graph_agent.server.responses.ids import is_conversation_id

_CONVERSATIONS = ("graph_agent", "conversations")
_ITEMS = ("graph_agent", "conversation_items")
_PENDING = ("graph_agent", "conversation_pending")
"""Keys of the items that the session has not received yet."""
_PAGE = 500


class ConversationRecord(TypedDict):
    """One conversation; its id is that of its session."""

    id: str
    created_at: int
    """Seconds since 1970."""
    metadata: dict[str, str]


class Conversations:
    """The conversations of one caller.

    Args:
        host: The agent.
        caller: The owner; conversations of other callers do not exist here.
    """

    def __init__(self, host: Host, caller: Caller) -> None:
        self._host = host
        self._store = host.store
        self._caller = caller

    async def put(self, record: ConversationRecord) -> None:
        """Store a conversation."""
        await self._store.aput(_CONVERSATIONS, self._key(record["id"]), dict(record), index=False)

    async def get(self, id_: str) -> ConversationRecord:
        """Return a conversation.

        Raises:
            ProblemError: If it was not created, or is deleted.
        """
        item = await self._store.aget(_CONVERSATIONS, self._key(id_))
        if item is None:
            raise ProblemError("not_found", f"Conversation with id {id_!r} not found.", param="conversation")
        return cast("ConversationRecord", item.value)

    async def exists(self, id_: str) -> bool:
        """Whether a conversation is stored."""
        return await self._store.aget(_CONVERSATIONS, self._key(id_)) is not None

    async def delete(self, id_: str) -> None:
        """Delete a conversation and its items; its session and its responses remain."""
        for stored in await self._stored(_ITEMS, id_):
            await self._store.adelete(stored.namespace, stored.key)
        await self.consume(id_, await self.pending_keys(id_))
        await self._store.adelete(_CONVERSATIONS, self._key(id_))

    async def check_session(self, id_: str) -> bool:
        """Check that a conversation, or a session of this name, exists; return whether it is a conversation.

        Raises:
            ProblemError: If it does not.
        """
        if await self.exists(id_):
            return True
        # The session of a deleted conversation remains, but not under the conversation's id.
        if (
            is_conversation_id(id_)
            or await self._host.saver.aget_tuple({"configurable": {"thread_id": self._caller.thread(id_)}}) is None
        ):
            raise ProblemError("not_found", f"Conversation with id {id_!r} not found.", param="conversation")
        return False

    async def append(self, id_: str, items: Sequence[dict[str, Any]], *, pending: bool) -> None:
        """Append items.

        Args:
            id_: The conversation.
            items: The items, each with an id.
            pending: Whether the session has not received them yet.
        """
        if not items:
            return
        key = f"{time.time_ns():020d}"
        await self._store.aput(self._namespace(_ITEMS, id_), key, {"items": list(items)}, index=False)
        if pending:
            await self._store.aput(self._namespace(_PENDING, id_), key, {}, index=False)

    async def items(self, id_: str) -> list[dict[str, Any]]:
        """Return all items, oldest first."""
        return [item for stored in await self._stored(_ITEMS, id_) for item in stored.value["items"]]

    async def delete_item(self, id_: str, item_id: str) -> None:
        """Delete an item that the session has not received yet.

        Raises:
            ProblemError: If there is no such item, or the session has it.
        """
        for stored in await self._stored(_ITEMS, id_):
            items = stored.value["items"]
            if any(item["id"] == item_id for item in items):
                if stored.key not in await self.pending_keys(id_):
                    raise ProblemError(
                        "conflict", f"The item {item_id!r} belongs to a response that has used it.", param="item_id"
                    )
                rest = [item for item in items if item["id"] != item_id]
                await self._store.aput(stored.namespace, stored.key, {"items": rest}, index=False)
                return
        raise ProblemError("not_found", f"There is no item {item_id!r}.", param="item_id")

    async def pending_keys(self, id_: str) -> list[str]:
        """Return the keys of the items that the session has not received yet, in order."""
        return [stored.key for stored in await self._stored(_PENDING, id_)]

    async def pending_items(self, id_: str, keys: Sequence[str]) -> list[dict[str, Any]]:
        """Return the items with some keys, in order."""
        namespace = self._namespace(_ITEMS, id_)
        found = [await self._store.aget(namespace, key) for key in keys]
        return [item for stored in found if stored is not None for item in stored.value["items"]]

    async def consume(self, id_: str, keys: Sequence[str]) -> None:
        """Record that the session has received the items with some keys."""
        for key in keys:
            await self._store.adelete(self._namespace(_PENDING, id_), key)

    async def _stored(self, prefix: tuple[str, ...], id_: str) -> list[SearchItem]:
        # By key: an item that is added between two reads shifts others to the next page, which then repeats them.
        found: dict[str, SearchItem] = {}
        namespace, read = self._namespace(prefix, id_), 0
        while page := await self._store.asearch(namespace, limit=_PAGE, offset=read):
            read += len(page)
            found |= {each.key: each for each in page}
        return [found[key] for key in sorted(found)]

    def _namespace(self, prefix: tuple[str, ...], id_: str) -> tuple[str, ...]:
        # A namespace must not hold dots, which ids of sessions may; the colon keeps callers apart.
        return (*prefix, f"{self._caller.name}:{id_.replace('.', '%')}")

    def _key(self, id_: str) -> str:
        return f"{self._caller.name}:{id_}"
