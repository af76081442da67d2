"""Manages conversations: named sessions whose items clients can list and add to.

A *pending* item was added by a client, and the session receives it with its next response.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, cast

from fastapi import APIRouter, Depends, Path, Query
from langgraph.store.base import PutOp, SearchItem
from pydantic import Field, model_validator
from typing_extensions import TypedDict

from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.schemas import SESSION_ID, ListOf, RequestObject, clean_body
from graph_agent.interfaces.server.host import Host, all_items
from graph_agent.interfaces.server.parameters import RequestServices, Sender, Services
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.response_models import (
    ConversationObject,
    DeletedResponse,
    ItemPage,
    OpenAIError,
    error_responses,
)
from graph_agent.interfaces.server.responses.chain import input_of
from graph_agent.interfaces.server.responses.ids import conversation_id, is_conversation_id, record_token
from graph_agent.interfaces.server.responses.schemas import Item, Metadata, read_items

_CONVERSATIONS = ("graph_agent", "conversations")
_ITEMS = ("graph_agent", "conversation_items")
_PENDING = ("graph_agent", "conversation_pending")
"""Namespace of the keys of items that the session has not received yet."""

PageLimit: TypeAlias = Annotated[int, Query(ge=1, le=100, description="Maximum number of items.")]
PageOrder: TypeAlias = Annotated[Literal["asc", "desc"], Query(description="Order of the items.")]
After: TypeAlias = Annotated[str | None, Query(description="List only the items after this one.")]
_ERRORS = error_responses(
    OpenAIError,
    {409: "A response has used the item", 503: "The server is stopping, or the database is locked"},
    only=(400, 401, 403, 404, 408, 413, 422, 500, 507),
)
_ConversationId = Annotated[str, Path(pattern=SESSION_ID, description="The conversation.")]
_ItemId = Annotated[str, Path(description="The item.")]

router = APIRouter(prefix="/v1/conversations", tags=["Responses"], route_class=BodyRoute, responses=_ERRORS)


class ConversationRecord(TypedDict):
    """One stored conversation. Its id is also the id of its session."""

    id: str
    created_at: int
    """Seconds since 1970."""
    metadata: dict[str, str]


class Conversations:
    """The stored conversations of one caller, the owner of an API key. Those of other callers cannot be reached."""

    def __init__(self, host: Host, caller: Caller) -> None:
        self._host = host
        self._store = host.store
        self._caller = caller

    async def put(self, record: ConversationRecord) -> None:
        """Store a conversation, replacing an earlier record of the same id."""
        await self._store.aput(_CONVERSATIONS, self._key(record["id"]), dict(record), index=False)

    async def get(self, id_: str) -> ConversationRecord:
        """Return a conversation; raise `ProblemError` (`not_found`) if it was never created, or was deleted."""
        item = await self._store.aget(_CONVERSATIONS, self._key(id_))
        if item is None:
            raise ProblemError("not_found", f"Conversation with id {id_!r} not found.", param="conversation")
        return cast("ConversationRecord", item.value)

    async def exists(self, id_: str) -> bool:
        """Return whether a conversation is stored."""
        return await self._store.aget(_CONVERSATIONS, self._key(id_)) is not None

    async def delete(self, id_: str) -> None:
        """Delete a conversation with its items, in one transaction; nothing if it is not stored. Its session and its
        responses remain.
        """
        stored = [each for prefix in (_ITEMS, _PENDING) for each in await self._stored(prefix, id_)]
        gone = [PutOp(each.namespace, each.key, None) for each in stored]
        # As one batch, which is a transaction in a database: a process may be killed in between.
        await self._store.abatch([*gone, PutOp(_CONVERSATIONS, self._key(id_), None)])

    async def check_session(self, id_: str) -> bool:
        """Return True if a conversation with this id exists, and False if there is only a session with this id.

        Raises `ProblemError` (`not_found`) if there is neither, or the id has the form of a conversation's id and the
        conversation was deleted.
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
        """Append items to a conversation as one batch. Does nothing without items.

        Args:
            id_: Id of the conversation.
            items: The items, in the form in which they are stored.
            pending: Whether the session has not received the items, and receives them with its next response.
        """
        if not items:
            return
        key = f"{time.time_ns():020d}"
        # The key is the time, so that the order of keys is that of the items.
        puts = [PutOp(self._namespace(_ITEMS, id_), key, {"items": list(items)}, index=False)]
        if pending:
            puts.append(PutOp(self._namespace(_PENDING, id_), key, {}, index=False))
        await self._store.abatch(puts)

    async def items(self, id_: str) -> list[dict[str, Any]]:
        """Return all items of a conversation, oldest first."""
        return [item for stored in await self._stored(_ITEMS, id_) for item in stored.value["items"]]

    async def delete_item(self, id_: str, item_id: str) -> None:
        """Delete an item that the session has not received yet; other items of its batch stay.

        Raises `ProblemError` if there is no such item (`not_found`), or the session has received it (`conflict`).
        """
        for stored in await self._stored(_ITEMS, id_):
            items = stored.value["items"]
            if any(item["id"] == item_id for item in items):
                if stored.key not in await self.pending_keys(id_):
                    raise ProblemError(
                        "conflict", f"The item {item_id!r} belongs to a response that has used it.", param="item_id"
                    )
                # An entry may hold several items; the others stay.
                rest = [item for item in items if item["id"] != item_id]
                await self._store.aput(stored.namespace, stored.key, {"items": rest}, index=False)
                return
        raise ProblemError("not_found", f"There is no item {item_id!r}.", param="item_id")

    async def pending_keys(self, id_: str) -> list[str]:
        """Return the store keys of the batches of items that the session has not received yet, oldest first. A batch
        holds the items of one `append`.
        """
        return [stored.key for stored in await self._stored(_PENDING, id_)]

    async def pending_items(self, id_: str, keys: Sequence[str]) -> list[dict[str, Any]]:
        """Return the items of the batches with the given keys, in order. Batches that are not stored are left out."""
        namespace = self._namespace(_ITEMS, id_)
        found = [await self._store.aget(namespace, key) for key in keys]
        return [item for stored in found if stored is not None for item in stored.value["items"]]

    async def consume(self, id_: str, keys: Sequence[str]) -> None:
        """Record that the session has received the batches of items with the given keys."""
        await self._store.abatch([PutOp(self._namespace(_PENDING, id_), key, None) for key in keys])

    async def _stored(self, prefix: tuple[str, ...], id_: str) -> list[SearchItem]:
        """Return the entries of a conversation in the namespace that begins with `prefix`, oldest first."""
        return await all_items(self._store, self._namespace(prefix, id_))

    def _namespace(self, prefix: tuple[str, ...], id_: str) -> tuple[str, ...]:
        """Return the store namespace of a conversation's entries: `prefix`, then caller and id, in which dots are
        replaced by `%`.
        """
        # A namespace must not hold dots, which ids of sessions may; the colon keeps callers apart.
        return (*prefix, f"{self._caller.name}:{id_.replace('.', '%')}")

    def _key(self, id_: str) -> str:
        """Return the store key of a conversation."""
        return f"{self._caller.name}:{id_}"


def item_page(
    items: Sequence[dict[str, Any]], *, limit: int, order: Literal["asc", "desc"], after: str | None
) -> ItemPage:
    """Return a page of items in the format of the API.

    Args:
        items: All items, oldest first.
        limit: Maximum number of items in the page.
        order: `asc` begins with the oldest item, `desc` with the newest.
        after: Id of the item before the page, in this order; None for the first page.

    Raises:
        ProblemError: There is no item with the id `after` (`not_found`).
    """
    listed = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        at = next((index for index, item in enumerate(listed) if item["id"] == after), None)
        if at is None:
            raise ProblemError("not_found", f"There is no item {after!r}.", param="after")
        listed = listed[at + 1 :]
    page = listed[:limit]
    return ItemPage(
        object="list",
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        # Counted after `after`, which is not in the page.
        has_more=len(listed) > limit,
    )


class _Body(RequestObject):
    _clean = model_validator(mode="before")(clean_body)


class CreateConversation(_Body):
    """A new conversation."""

    items: ListOf[Item] | None = Field(None, description="Its first items.")
    metadata: Metadata | None = None


class UpdateConversation(_Body):
    """New metadata of a conversation."""

    metadata: Metadata | None = None


class CreateItems(_Body):
    """Items to add to a conversation."""

    items: ListOf[Item] = Field(min_length=1)


async def conversations(sender: Sender, server: RequestServices) -> Conversations:
    """Return the conversations of the request's caller, as a dependency of routes."""
    return Conversations(server.chat.runs.host, sender)


_Conversations = Annotated[Conversations, Depends(conversations)]


@router.post("")
async def create_conversation(
    owned: _Conversations, server: RequestServices, body: CreateConversation | None = None
) -> ConversationObject:
    """Create a conversation. Its first items are sent to the agent with the next response."""
    # The API permits a request without a body.
    body = body or CreateConversation(items=None)
    token = record_token()
    id_ = conversation_id(token)
    items = _checked_items(body.items or [], server, token)
    await owned.put({"id": id_, "created_at": int(time.time()), "metadata": body.metadata or {}})
    await owned.append(id_, items, pending=True)
    return await _conversation(owned, id_)


@router.get("/{conversation_id}")
async def get_conversation(conversation_id: _ConversationId, owned: _Conversations) -> ConversationObject:
    """Return a conversation, without its items. The status is 404 if it does not exist."""
    return await _conversation(owned, conversation_id)


@router.post("/{conversation_id}")
async def update_conversation(
    conversation_id: _ConversationId, body: UpdateConversation, owned: _Conversations
) -> ConversationObject:
    """Replace the metadata of a conversation; without `metadata`, they are removed. The status is 404 if it does not
    exist.
    """
    record = await owned.get(conversation_id)
    await owned.put({**record, "metadata": body.metadata or {}})
    return await _conversation(owned, conversation_id)


@router.delete("/{conversation_id}")
async def delete_conversation(conversation_id: _ConversationId, owned: _Conversations) -> DeletedResponse:
    """Delete a conversation with its items. Its session and its responses remain. The status is 404 if it does not
    exist.
    """
    await owned.get(conversation_id)
    await owned.delete(conversation_id)
    return DeletedResponse(id=conversation_id, object="conversation.deleted", deleted=True)


@router.get("/{conversation_id}/items")
async def list_items(
    conversation_id: _ConversationId,
    owned: _Conversations,
    limit: PageLimit = 20,
    order: PageOrder = "desc",
    after: After = None,
) -> ItemPage:
    """List the items of a conversation, newest first by default. The status is 404 for an unknown conversation or
    `after`.
    """
    await owned.get(conversation_id)
    return item_page(await owned.items(conversation_id), limit=limit, order=order, after=after)


@router.post("/{conversation_id}/items")
async def create_items(
    conversation_id: _ConversationId, body: CreateItems, owned: _Conversations, server: RequestServices
) -> ItemPage:
    """Add items to a conversation, and return them. The agent receives them with the next response. The status is 404
    for an unknown conversation, 400 for an item that no response could use.
    """
    await owned.get(conversation_id)
    items = _checked_items(body.items, server, record_token())
    await owned.append(conversation_id, items, pending=True)
    return item_page(items, limit=len(items), order="asc", after=None)


@router.get("/{conversation_id}/items/{item_id}")
async def get_item(conversation_id: _ConversationId, item_id: _ItemId, owned: _Conversations) -> dict[str, Any]:
    """Return one item of a conversation. The status is 404 if there is no such conversation or item."""
    await owned.get(conversation_id)
    found = next((item for item in await owned.items(conversation_id) if item["id"] == item_id), None)
    if found is None:
        raise ProblemError("not_found", f"There is no item {item_id!r}.", param="item_id")
    return found


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(conversation_id: _ConversationId, item_id: _ItemId, owned: _Conversations) -> ConversationObject:
    """Delete an item that no response has used yet. The status is 409 if a response has used it, 404 if it does not
    exist.
    """
    await owned.get(conversation_id)
    await owned.delete_item(conversation_id, item_id)
    return await _conversation(owned, conversation_id)


def _checked_items(items: list[Any], server: Services, token: str) -> list[dict[str, Any]]:
    """Return items in the form in which they are stored, after checking that a response can use them.

    Raises `ProblemError` if there are too many, or one is invalid.
    """
    server.check_items(items)
    read_items(items)
    return input_of(items, token)


async def _conversation(owned: Conversations, id_: str) -> ConversationObject:
    """Return a conversation in the format of the API; raise `ProblemError` if there is none."""
    return ConversationObject(object="conversation", **await owned.get(id_))
