"""Makes and parses the ids of responses, conversations, items and approval requests.

A *token* is the part of a response's id that its items and approval requests share; it begins with the time.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Literal

from graph_agent.interfaces.server.chat.run_spec import PENDING_ID

ItemKind = Literal["msg", "rs", "fc", "mcp", "cmp"]
"""Prefix of an item's id: message, reasoning, function call, call of the agent's own tools, or compaction."""
_CONVERSATION = re.compile(r"conv_[0-9a-f]{24}")
_RESPONSE = re.compile(r"resp_([0-9a-f]{24})")
_ITEM = re.compile(r"(?:msg|rs|fc|mcp)_([0-9a-f]{24})[0-9a-f]{4,}")
_APPROVAL = re.compile(r"mcpr_([0-9a-f]{24})([0-9a-f]{8})([0-9a-f]{2,})")


def record_token() -> str:
    """Return a new token of 24 hexadecimal digits: the time in seconds, then 64 random bits."""
    # The time first: the day of a response, and so its namespace, follows from its id.
    return f"{int(time.time()):08x}{secrets.token_hex(8)}"


def response_id(token: str) -> str:
    """Return the id of the response that has a token, `resp_<token>`."""
    return f"resp_{token}"


def item_id(kind: ItemKind, token: str, index: int) -> str:
    """Return the id of a response's output item, e.g. `msg_<token>0002` for the third item."""
    return f"{kind}_{token}{index:04x}"


def approval_id(token: str, interrupt_id: str, index: int) -> str:
    """Return the id of an approval request, which contains a token, the start of the interrupt's id, and the index of
    the call in the interrupt.
    """
    return f"mcpr_{token}{interrupt_id[:8]}{index:02x}"


def conversation_id(token: str) -> str:
    """Return the id of a new conversation, `conv_<token>`."""
    return f"conv_{token}"


def is_conversation_id(id_: str) -> bool:
    """Return whether an id has the form of `conversation_id`."""
    return _CONVERSATION.fullmatch(id_) is not None


def token_of_response(id_: str) -> str | None:
    """Return the token in the id of a response; None for any other text."""
    found = _RESPONSE.fullmatch(id_)
    return found[1] if found else None


def token_of_answer(id_: str) -> str | None:
    """Return the token of the response with an id, or with an item, call or approval request of this id; None for
    another text.
    """
    return token_of_response(id_) or token_of_item(id_)


def token_of_item(id_: str) -> str | None:
    """Return the token in the id of an item, a call or an approval request, which names its response; None for any
    other text.
    """
    found = _ITEM.fullmatch(id_) or PENDING_ID.fullmatch(id_) or _APPROVAL.fullmatch(id_)
    return found[1] if found else None


def place_of_approval(id_: str) -> tuple[str, int] | None:
    """Return the first 8 characters of the interrupt's id and the index of the call from the id of an approval request;
    None for any other text.
    """
    found = _APPROVAL.fullmatch(id_)
    return (found[2], int(found[3], 16)) if found else None
