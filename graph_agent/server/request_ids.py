"""Request ids, in the response headers that OpenAI's and Anthropic's clients read."""

from __future__ import annotations

import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

ANTHROPIC_HEADER = "request-id"
OPENAI_HEADER = "x-request-id"


def new_request_id() -> str:
    """Return a unique request id."""
    return f"req_{uuid.uuid4().hex}"


def with_request_id(send: Send) -> Send:
    """Return a `send` that sets both headers to the response's existing request id, or to a new one."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault(OPENAI_HEADER, headers.setdefault(ANTHROPIC_HEADER, new_request_id()))
        await send(message)

    return send_with_id
