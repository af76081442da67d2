"""Messages for unknown paths, with the client setting that typically causes them."""

from __future__ import annotations

_HINTS = {
    "/responses": "OpenAI's Responses API is not served. Have the client use /v1/chat/completions.",
    "/chat/completions": "Chat completions are at /v1/chat/completions: give the client a base URL that ends in /v1.",
    "/models": "The models are at /v1/models: give the client a base URL that ends in /v1.",
    "/messages": "Messages are at /v1/messages: Anthropic's own clients want a base URL without /v1, and add it.",
}


def not_found_message(path: str) -> str:
    """Return the error message for an unknown path."""
    hint = next((text for end, text in _HINTS.items() if path.endswith(end)), "")
    return f"There is nothing at {path}. {hint}".rstrip()
