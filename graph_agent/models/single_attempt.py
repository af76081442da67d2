"""Chat models without client retries: the loop has its own, and both together would multiply.

The client's default limit on the time between two chunks of a stream is removed for the same reason.
"""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

_CHUNK_TIMEOUT, _CHUNK_TIMEOUT_S = "stream_chunk_timeout", 120.0
"""Field of `ChatOpenAI`, and its default value."""


def without_client_retries(model: BaseChatModel) -> BaseChatModel:
    """Return a copy of the model without client retries; the same object if its class has no `max_retries`.

    The copy shares the connections of the original, which is unchanged. The limit on the time between two chunks is
    removed if it is the client's default, because `model_timeout_s` replaces it and may be longer. An explicit limit
    applies in addition.

    Args:
        model: The chat model. An existing client is replaced if it has `with_options`, as in the packages of OpenAI,
            Anthropic and Groq; other classes read `max_retries` on each call.
    """
    fields = type(model).model_fields
    if "max_retries" not in fields:
        return model
    update: dict[str, Any] = {"max_retries": 0}
    for name in fields:
        if (once := _once(getattr(model, name, None))) is not None:
            update[name] = once
    if _CHUNK_TIMEOUT not in model.model_fields_set and getattr(model, _CHUNK_TIMEOUT, None) == _CHUNK_TIMEOUT_S:
        update[_CHUNK_TIMEOUT] = None
    copy = model.model_copy(update=update)
    # A client in a cached property is stored outside the fields and has the old number of retries.
    for name in set(vars(copy)) - fields.keys():
        vars(copy).pop(name)
    return copy


def _once(client: Any) -> Any | None:
    """Return a client, or a resource such as `chat.completions`, without retries; None for other objects."""
    if callable(getattr(type(client), "with_options", None)):
        return client.with_options(max_retries=0)
    owner: Any = getattr(client, "_client", None)
    if callable(getattr(type(owner), "with_options", None)):
        return type(client)(owner.with_options(max_retries=0))
    return None
