"""Adapts LangChain's client of Anthropic's API: the usage at the start of a stream, which LangChain drops.

LangChain counts on the input tokens at the end of the stream, where many compatible servers report the output alone.
"""

from __future__ import annotations

import functools
from typing import Any

from langchain_core.language_models import BaseChatModel


def with_early_usage(cls: type[BaseChatModel]) -> type[Any]:
    """Return a subclass, of the same name, whose first chunk of a stream reports the usage so far.

    The class if it is one already.
    """
    return cls if issubclass(cls, _Adapter) else _adapted(cls)


class _Adapter:
    """Overrides a method of `ChatAnthropic`; it precedes that class in the bases of an adapted class."""

    def _make_message_chunk_from_anthropic_event(self, event: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return what LangChain makes of an event of a stream, with the usage of `message_start` if LangChain left it
        out.
        """
        chunk, block = super()._make_message_chunk_from_anthropic_event(event, **kwargs)  # type: ignore[misc]  # of ChatAnthropic
        if chunk is not None and event.type == "message_start" and chunk.usage_metadata is None:
            chunk.usage_metadata = _usage_of(getattr(event.message, "usage", None))
        return chunk, block


@functools.cache
def _adapted(cls: type[BaseChatModel]) -> type[Any]:
    """Return a subclass of a model's class with the methods of `_Adapter`; cached for each class."""
    # Instances are never validated: their class is replaced.
    parent: Any = cls
    fields = {
        "__module__": parent.__module__,
        "__qualname__": parent.__qualname__,
        "__doc__": parent.__doc__,
        "model_config": {"defer_build": True},
    }
    made: type[Any] = type(parent)(parent.__name__, (_Adapter, parent), fields)
    return made


def _usage_of(reported: Any) -> dict[str, Any] | None:
    """Convert the usage at the start of a stream to LangChain's form, with cached tokens in the input.

    None if it is missing.
    """
    read, written = (getattr(reported, f"cache_{kind}_input_tokens", None) or 0 for kind in ("read", "creation"))
    asked = (getattr(reported, "input_tokens", None) or 0) + read + written
    answered = getattr(reported, "output_tokens", None) or 0
    if not asked + answered:
        return None
    # LangChain names the tokens written to the cache by their lifetime where the server does.
    kept = 0 if getattr(reported, "cache_creation", None) else written
    details = {name: count for name, count in (("cache_read", read), ("cache_creation", kept)) if count}
    usage = {"input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered}
    return {**usage, "input_token_details": details} if details else usage
