"""The id of each request, in the headers where OpenAI's and Anthropic's clients look for it."""

from __future__ import annotations

import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

ANTHROPIC_HEADER = "request-id"
OPENAI_HEADER = "x-request-id"


def new_request_id() -> str:
    """An id that no other request has."""
    return f"req_{uuid.uuid4().hex}"


def with_request_id(send: Send) -> Send:
    """Send a response with its request's id in both headers: one that it has already, or a new one."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault(OPENAI_HEADER, headers.setdefault(ANTHROPIC_HEADER, new_request_id()))
        await send(message)

    return sending
