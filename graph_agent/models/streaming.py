"""Selects the model requests that are streamed: all to a provider, so that a slow model's reply is no timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.language_models import BaseChatModel

from graph_agent.base._compat.replies import can_stream
from graph_agent.models.wire.openai_stream import reads_directly

M = TypeVar("M")
T = TypeVar("T")

_IN_PROCESS = ("graph_agent.", "langchain_core.")
"""Modules of chat models without a connection, such as scripted ones."""
_TAKES_NO_STREAM = "_graph_agent_takes_no_stream"
"""Attribute of a model whose server has answered a streamed request with no stream."""
_NO_STREAM = ("No generation chunks were returned", "No generations found in stream")
"""LangChain's errors for an answer without a chunk."""


class StreamTap:
    """Makes LangChain stream the reply of a request: it does so for a callback handler with these two methods."""

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        """Return the output unchanged."""
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        """Return the output unchanged."""
        return output


def streams_always(model: object, options: Mapping[str, Any]) -> bool:
    """Whether a model's request is streamed also without a reader: its class has a stream, and it is no local object.

    Without a stream, `model_timeout_s` would limit the whole reply.
    """
    return isinstance(model, BaseChatModel) and can_stream(model, options) and not _is_in_process(type(model))


@lru_cache(maxsize=128)
def _is_in_process(cls: type) -> bool:
    own = [each.__module__ for each in cls.__mro__ if each is not BaseChatModel and issubclass(each, BaseChatModel)]
    return any(module.startswith(_IN_PROCESS) for module in own)


def may_refuse_stream(model: object, options: Mapping[str, Any], error: Exception) -> bool:
    """Whether an error may be that of a server which answers a streamed request as a whole, so that no chunk came."""
    has_no_chunk = isinstance(error, ValueError) and str(error).startswith(_NO_STREAM)
    return has_no_chunk and streams_always(model, options) and not reads_directly(model)


def unstreamed(model: M) -> M:
    """Return a copy of a model that sends no streamed request."""
    assert isinstance(model, BaseChatModel)
    return model.model_copy(update={"disable_streaming": True})


def remember_unstreamed(model: object) -> None:
    """Record that the model's server answered without a stream, and answered the same request as a whole."""
    vars(model)[_TAKES_NO_STREAM] = True


def without_refused_stream(model: M) -> M:
    """Return the model, or `unstreamed(model)` after `remember_unstreamed`."""
    return unstreamed(model) if _TAKES_NO_STREAM in getattr(model, "__dict__", ()) else model
