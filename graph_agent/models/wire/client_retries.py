"""Turns off the retries of a model's client: the loop retries, and knows the fallbacks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from langchain_core.language_models import BaseChatModel

from graph_agent.base._compat.provider_retries import without_boto_retries, without_watsonx_retries
from graph_agent.base._internal.blocking_replies import announce_blocking

_RETRIES = "max_retries"
_CHUNK_TIMEOUT, _CHUNK_TIMEOUT_S = "stream_chunk_timeout", 120.0
"""Field of `ChatOpenAI` with the seconds between two chunks, and its default."""


def without_client_retries(model: BaseChatModel) -> BaseChatModel:
    """Return a copy of the model whose client does not retry; the same object if there is nothing to switch off.

    The copy shares the connections of the original, which is unchanged. `max_retries` is set to 0, and clients that
    store a number of their own are replaced: those with `with_options` (OpenAI, Anthropic, Groq), those of boto3, and
    those of IBM. Clients in cached properties are built again at their next use. Clients that take the number with each
    call get it from `ClientRules`.

    The client's default limit on the time between chunks is removed, too, because `model_timeout_s` replaces it and may
    be longer. A limit that was set explicitly stays.
    """
    fields = type(model).model_fields
    found = {name: client for name, value in _attributes(model) if (client := _once(value)) is not None}
    if not found and _RETRIES not in fields:
        return model
    update = {name: client for name, client in found.items() if name in fields}
    if _RETRIES in fields:
        update[_RETRIES] = 0
    if _CHUNK_TIMEOUT not in model.model_fields_set and getattr(model, _CHUNK_TIMEOUT, None) == _CHUNK_TIMEOUT_S:
        update[_CHUNK_TIMEOUT] = None
    copy = model.model_copy(update=update)
    private = copy.__pydantic_private__ or {}
    for name in found.keys() - update.keys():
        (private if name in private else vars(copy))[name] = found[name]
    for name in set(vars(copy)) - fields.keys():
        # The class makes it again, with the new number of retries.
        if isinstance(getattr(type(model), name, None), cached_property):
            vars(copy).pop(name)
    return copy


def _attributes(model: BaseChatModel) -> Iterator[tuple[str, Any]]:
    """Yield name and value of all attributes of a model, private ones included."""
    yield from vars(model).items()
    yield from (model.__pydantic_private__ or {}).items()


def _once(client: Any) -> Any | None:
    """Return a copy of a provider's client, or of a resource such as `chat.completions`, that sends each request only
    once. None if it is no client of a known package."""
    kind = type(client)
    # Most attributes of a model are texts, numbers and secrets.
    if kind.__module__ in {"builtins", "pydantic.types"} or isinstance(client, type):
        return None
    if _has_method(client, "with_options"):
        return client.with_options(max_retries=0)
    owner: Any = getattr(client, "_client", None)
    if _has_method(owner, "with_options"):
        return kind(owner.with_options(max_retries=0))
    packages = {cls.__module__.partition(".")[0] for cls in kind.__mro__}
    if "botocore" in packages:
        return without_boto_retries(client, _announce)
    if "ibm_watsonx_ai" in packages and kind.__name__ == "ModelInference":
        return without_watsonx_retries(client)
    return None


def _has_method(client: Any, name: str) -> bool:
    """Whether the class of an object has a method with this name."""
    return callable(getattr(type(client), name, None))


def _announce(response: Any) -> None:
    """Allow a cancellation to interrupt a thread that reads the response body by urllib3."""
    body = getattr(response, "raw", None)
    if _has_method(body, "shutdown"):
        announce_blocking(partial(_shut_down, body))


def _shut_down(body: Any) -> None:
    """Interrupt the thread that reads a response body, and close the body in another thread."""
    # The body may have been read to its end.
    with suppress(ValueError, RuntimeError, OSError):
        body.shutdown()
        # It closes once the other thread has left its read; a stream of boto3 refers to itself, so it is not freed.
        threading.Thread(target=body.close, name="close a reply", daemon=True).start()
