"""What a client is told at an address where nothing is: which setting of its own leads there, if we know it."""

from __future__ import annotations

_WAYS = {
    "/responses": "OpenAI's Responses API is not served. Have the client use /v1/chat/completions.",
    "/chat/completions": "Chat completions are at /v1/chat/completions: give the client a base URL that ends in /v1.",
    "/models": "The models are at /v1/models: give the client a base URL that ends in /v1.",
    "/messages": "Messages are at /v1/messages: Anthropic's own clients want a base URL without /v1, and add it.",
}


def nothing_at(path: str) -> str:
    """What is told of an unknown path."""
    way = next((told for end, told in _WAYS.items() if path.endswith(end)), "")
    return f"There is nothing at {path}. {way}".rstrip()
