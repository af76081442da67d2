"""Selects the model requests that are streamed: all to a provider, so that a slow model's reply is no timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.language_models import BaseChatModel

from graph_agent.base._compat.replies import can_stream, is_streaming_disabled
from graph_agent.models.wire.openai_stream import reads_directly

M = TypeVar("M")
T = TypeVar("T")

_IN_PROCESS = ("graph_agent.", "langchain_core.")
"""Packages whose chat models run in this process, such as scripted ones."""
_TAKES_NO_STREAM = "_graph_agent_takes_no_stream"
"""Attribute set on a model whose server answers streamed requests with a whole reply."""
_NO_STREAM = ("No generation chunks were returned", "No generations found in stream")
"""Beginnings of LangChain's error texts for a streamed reply without a chunk."""


class StreamTap:
    """Makes LangChain stream a model's reply, even for `ainvoke`, if a callback handler of the call has this class.

    LangChain looks for these two methods on the handlers.
    """

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        """Return `output` unchanged."""
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        """Return `output` unchanged."""
        return output


def streams_always(model: object, options: Mapping[str, Any]) -> bool:
    """Whether to stream a model's replies even if no reader wants the tokens.

    True for a chat model that can stream with these options and is not one that runs in this process. Without a stream,
    `model_timeout_s`, which limits the time between tokens, would limit the whole reply.
    """
    return isinstance(model, BaseChatModel) and can_stream(model, options) and not _is_in_process(type(model))


def may_stream(model: object, options: Mapping[str, Any]) -> bool:
    """Whether a model's replies can be streamed for code that reads calls while they arrive.

    True for any model, unless the model or the options disable streaming.
    """
    return not (isinstance(model, BaseChatModel) and is_streaming_disabled(model, options))


@lru_cache(maxsize=128)
def _is_in_process(cls: type) -> bool:
    own = [each.__module__ for each in cls.__mro__ if each is not BaseChatModel and issubclass(each, BaseChatModel)]
    return any(module.startswith(_IN_PROCESS) for module in own)


def may_refuse_stream(model: object, options: Mapping[str, Any], error: Exception) -> bool:
    """Whether an error may mean that the server ignored streaming and sent a whole reply, in which LangChain found no
    chunk.

    Always False for a model that is not streamed by `streams_always`, or whose stream is read directly.
    """
    has_no_chunk = isinstance(error, ValueError) and str(error).startswith(_NO_STREAM)
    return has_no_chunk and streams_always(model, options) and not reads_directly(model)


def unstreamed(model: M) -> M:
    """Return a copy of a chat model with streaming disabled."""
    assert isinstance(model, BaseChatModel)
    return model.model_copy(update={"disable_streaming": True})


def remember_unstreamed(model: object) -> None:
    """Mark `model` as one whose server does not stream, after a request without streaming has succeeded."""
    vars(model)[_TAKES_NO_STREAM] = True


def without_refused_stream(model: M) -> M:
    """Return a copy that does not stream if `remember_unstreamed` was called for this model.

    Otherwise the same object.
    """
    return unstreamed(model) if _TAKES_NO_STREAM in getattr(model, "__dict__", ()) else model
