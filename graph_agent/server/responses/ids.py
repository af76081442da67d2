"""Ids of responses and of the items in them; each names its response."""

from __future__ import annotations

import re
import secrets
import time
from typing import Literal

ItemKind = Literal["msg", "rs", "fc", "mcp", "cmp"]
_CONVERSATION = re.compile(r"conv_[0-9a-f]{24}")
_RESPONSE = re.compile(r"resp_([0-9a-f]{24})")
_ITEM = re.compile(r"(?:msg|rs|fc|mcp)_([0-9a-f]{24})[0-9a-f]{4,}")
_CALL = re.compile(r"call_([0-9a-f]{24})[0-9a-f]{8}")
_APPROVAL = re.compile(r"mcpr_([0-9a-f]{24})([0-9a-f]{8})([0-9a-f]{2,})")


def new_token() -> str:
    """Return 24 hexadecimal digits: the time in seconds, and 64 random bits."""
    return f"{int(time.time()):08x}{secrets.token_hex(8)}"


def created_of(token: str) -> int:
    """Return the time in seconds at which a token was made."""
    return int(token[:8], 16)


def response_id(token: str) -> str:
    """Return the id of the response with a token."""
    return f"resp_{token}"


def item_id(kind: ItemKind, token: str, index: int) -> str:
    """Return the id of a response's output item, from its index."""
    return f"{kind}_{token}{index:04x}"


def approval_id(token: str, interrupt_id: str, index: int) -> str:
    """Return the id of an approval request, from its interrupt and its index in the request."""
    return f"mcpr_{token}{interrupt_id[:8]}{index:02x}"


def conversation_id(token: str) -> str:
    """Return the id of a new conversation."""
    return f"conv_{token}"


def is_conversation_id(id_: str) -> bool:
    """Whether an id is one of `conversation_id`."""
    return _CONVERSATION.fullmatch(id_) is not None


def token_of_response(id_: str) -> str | None:
    """Return the token of a response's id; None for another text."""
    found = _RESPONSE.fullmatch(id_)
    return found[1] if found else None


def token_of_item(id_: str) -> str | None:
    """Return the token of the response that an item, call or approval request belongs to; None for another text."""
    found = _ITEM.fullmatch(id_) or _CALL.fullmatch(id_) or _APPROVAL.fullmatch(id_)
    return found[1] if found else None


def place_of_approval(id_: str) -> tuple[str, int] | None:
    """Return the start of an approval's interrupt id, and its index in the request; None for another text."""
    found = _APPROVAL.fullmatch(id_)
    return (found[2], int(found[3], 16)) if found else None
