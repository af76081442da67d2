"""A chat model whose client sends each request once: the loop has retries of its own, and two kinds would multiply.

The same holds for the limit that a client sets by default on the time between two chunks of a stream.
"""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

_CHUNK_TIMEOUT, _CHUNK_TIMEOUT_S = "stream_chunk_timeout", 120.0
"""Field of `ChatOpenAI`, and its value where neither the caller nor the environment sets one."""


def without_client_retries(model: BaseChatModel) -> BaseChatModel:
    """A copy of the model that does not try again by itself; the very same one where its class has no `max_retries`.

    The copy shares the connections of the original, which is left as it is. Its limit on the time between two chunks
    is off where it is the client's default: `model_timeout_s` takes its place, and may be longer. One that was set
    holds beside it.

    Args:
        model: The chat model. A client made beforehand is replaced where it is of the kind that the packages of OpenAI,
            Anthropic and Groq share (`with_options`); other classes read `max_retries` when they call.
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
    # A client kept as a cached property lives beside the fields, and was made with the old number.
    for name in set(vars(copy)) - fields.keys():
        vars(copy).pop(name)
    return copy


def _once(client: Any) -> Any | None:
    """A client, or one of its resources such as `chat.completions`, that sends once; None for anything else."""
    if callable(getattr(type(client), "with_options", None)):
        return client.with_options(max_retries=0)
    owner: Any = getattr(client, "_client", None)
    if callable(getattr(type(owner), "with_options", None)):
        return type(client)(owner.with_options(max_retries=0))
    return None
