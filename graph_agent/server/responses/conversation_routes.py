"""Routes of OpenAI's conversations."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from graph_agent.server.admission.gate import caller
from graph_agent.server.admission.keys import Caller
from graph_agent.server.admission.off_loop import BodyRoute
from graph_agent.server.chat.schemas import SESSION_ID, ListOf, clean_body
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.parameters import Services, error_responses, services
from graph_agent.server.response_models import ConversationObject, DeletedResponse, ItemPage, OpenAIError
from graph_agent.server.responses.chain import input_of
from graph_agent.server.responses.conversations import Conversations
from graph_agent.server.responses.ids import conversation_id, new_token
from graph_agent.server.responses.input_items import read_items
from graph_agent.server.responses.pages import After, Limit, Order, page_of
from graph_agent.server.responses.schemas import Item, Metadata

_ERRORS = {
    status: error
    for status, error in error_responses(
        OpenAIError,
        {
            500: "The server failed",
            503: "The server is stopping, or the database is locked",
            507: "The database is full",
        },
    ).items()
    if status != 429
}
_ERRORS[409] = {"model": OpenAIError, "description": "A response has used the item"}
_ConversationId = Annotated[str, Path(pattern=SESSION_ID, description="The conversation.")]
_ItemId = Annotated[str, Path(description="The item.")]

router = APIRouter(prefix="/v1/conversations", tags=["Responses"], route_class=BodyRoute, responses=_ERRORS)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

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


async def conversations(
    sender: Annotated[Caller, Depends(caller)], server: Annotated[Services, Depends(services)]
) -> Conversations:
    """Return the conversations of the request's caller; a dependency of routes."""
    return Conversations(server.chat.runs.host, sender)


_Conversations = Annotated[Conversations, Depends(conversations)]


@router.post("")
async def create_conversation(
    owned: _Conversations, server: Annotated[Services, Depends(services)], body: CreateConversation | None = None
) -> ConversationObject:
    """Create a conversation."""
    body = body or CreateConversation(items=None)
    token = new_token()
    id_ = conversation_id(token)
    items = _checked(body.items or [], server, token)
    await owned.put({"id": id_, "created_at": int(time.time()), "metadata": body.metadata or {}})
    await owned.append(id_, items, pending=True)
    return await _conversation(owned, id_)


@router.get("/{conversation_id}")
async def get_conversation(conversation_id: _ConversationId, owned: _Conversations) -> ConversationObject:
    """Return a conversation."""
    return await _conversation(owned, conversation_id)


@router.post("/{conversation_id}")
async def update_conversation(
    conversation_id: _ConversationId, body: UpdateConversation, owned: _Conversations
) -> ConversationObject:
    """Replace a conversation's metadata."""
    record = await owned.get(conversation_id)
    await owned.put({**record, "metadata": body.metadata or {}})
    return await _conversation(owned, conversation_id)


@router.delete("/{conversation_id}")
async def delete_conversation(conversation_id: _ConversationId, owned: _Conversations) -> DeletedResponse:
    """Delete a conversation and its items; its session and its responses remain."""
    await owned.get(conversation_id)
    await owned.delete(conversation_id)
    return DeletedResponse(id=conversation_id, object="conversation.deleted", deleted=True)


@router.get("/{conversation_id}/items")
async def list_items(
    conversation_id: _ConversationId,
    owned: _Conversations,
    limit: Limit = 20,
    order: Order = "desc",
    after: After = None,
) -> ItemPage:
    """List the items of a conversation."""
    await owned.get(conversation_id)
    return page_of(await owned.items(conversation_id), limit=limit, order=order, after=after)


@router.post("/{conversation_id}/items")
async def create_items(
    conversation_id: _ConversationId,
    body: CreateItems,
    owned: _Conversations,
    server: Annotated[Services, Depends(services)],
) -> ItemPage:
    """Add items to a conversation; the session receives them with its next response."""
    await owned.get(conversation_id)
    items = _checked(body.items, server, new_token())
    await owned.append(conversation_id, items, pending=True)
    return page_of(items, limit=len(items), order="asc", after=None)


@router.get("/{conversation_id}/items/{item_id}")
async def get_item(conversation_id: _ConversationId, item_id: _ItemId, owned: _Conversations) -> dict[str, Any]:
    """Return one item of a conversation."""
    await owned.get(conversation_id)
    found = next((item for item in await owned.items(conversation_id) if item["id"] == item_id), None)
    if found is None:
        raise ProblemError("not_found", f"There is no item {item_id!r}.", param="item_id")
    return found


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(conversation_id: _ConversationId, item_id: _ItemId, owned: _Conversations) -> ConversationObject:
    """Delete an item that no response has used yet."""
    await owned.get(conversation_id)
    await owned.delete_item(conversation_id, item_id)
    return await _conversation(owned, conversation_id)


def _checked(items: list[Any], server: Services, token: str) -> list[dict[str, Any]]:
    """Return items for storage, after checking that a response can use them."""
    server.check_items(items)
    read_items(items)
    return input_of(items, token)


async def _conversation(owned: Conversations, id_: str) -> ConversationObject:
    return ConversationObject(object="conversation", **await owned.get(id_))
