"""What a model or its provider says when it will not answer: an answer too, and not a crash."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage

from graph_agent.models.errors import classify_model_error
from graph_agent.models.finish_reasons import cut_off

REFUSED = "The model's provider refused this request because of its content; put it in other words."
CUT_OFF = "The model's provider stopped the answer here because of its content."


def refusal_in(reply: AIMessage, *, heard: bool) -> str | None:
    """What the user is told of a reply that refuses; None for a reply that is none.

    Args:
        reply: The model's reply.
        heard: Whether the reply's text is the user's to read; a plan's is not.

    Returns:
        The provider's own words where it gives some, else one sentence, below what was said so far.
    """
    if words := _words(reply):
        return words
    if cut_off(reply) != "content_filter":
        return None
    return f"{reply.text}\n\n{CUT_OFF}" if heard and reply.text.strip() else REFUSED


def refused_by(error: BaseException) -> bool:
    """Whether an exception says that the provider's content filter stopped the request."""
    return classify_model_error(error) == "content_filter"


def _words(reply: AIMessage) -> str:
    """OpenAI's refusal: beside the content, or a block of it."""
    said: Any = reply.additional_kwargs.get("refusal")
    if isinstance(said, str) and said.strip():
        return said
    blocks = reply.content if isinstance(reply.content, list) else []
    return "".join(
        str(block.get("refusal", "")) for block in blocks if isinstance(block, dict) and block.get("type") == "refusal"
    )
