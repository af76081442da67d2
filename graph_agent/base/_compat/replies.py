"""Imports LangChain's private names behind the generation and streaming of a chat model's reply.

Like those of `_compat`, each has a test that fails when it moves: `tests/base/test_compat.py`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.globals import get_llm_cache
from langchain_core.language_models._utils import _normalize_messages
from langchain_core.messages import BaseMessage
from langchain_core.tracers._streaming import _StreamingCallbackHandler, _V2StreamingCallbackHandler
from langchain_core.utils._signature import _signature_parameters
from langchain_core.utils.utils import LC_ID_PREFIX

from graph_agent.base._compat import TRACED_OPTIONS

if TYPE_CHECKING:
    # Imported in functions where they are called: a process that sends no request does not need them.
    from langchain_core.language_models import BaseChatModel
    from langchain_core.outputs import ChatResult


def generate_reply(
    model: BaseChatModel,
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    manager: AsyncCallbackManagerForLLMRun,
    *,
    is_text: bool,
    on_chunk: Callable[[BaseMessage], None] | None = None,
) -> Awaitable[ChatResult]:
    """Generate a chat model's reply as `BaseChatModel.agenerate` does, in the caller's task and without start and end
    events. The reply is streamed if a handler of `manager` or `on_chunk` asks for it. To be awaited at once.

    Args:
        model: The chat model.
        request: The messages.
        options: Keyword arguments of the call; those of `TRACED_OPTIONS` are left out.
        manager: Receives the tokens of a streamed reply.
        is_text: Whether the content of every message is a string, so that nothing has to be normalized.
        on_chunk: Makes a reply always streamed, and receives each chunk in place of `manager`. Ignored for a model with
            a cache, a rate limiter, or a generation of its own.

    Raises:
        Exception: The model's error; with `on_chunk`, `ValueError` if the stream has no chunk.
    """
    given = {name: value for name, value in options.items() if name not in TRACED_OPTIONS}
    # Only content blocks have a form to normalize.
    messages = list(request) if is_text else _normalize_messages(request)
    is_plain = _has_plain_generation(model)
    if is_plain and on_chunk is not None:
        return _generate_from_chunks(model, messages, manager, given, on_chunk)
    if is_plain and not _streams(model, manager, given):
        return _generate(model, messages, manager, given)
    return model._agenerate_with_cache(messages, run_manager=manager, **given)


def can_stream(model: BaseChatModel, options: Mapping[str, Any]) -> bool:
    """Whether a model implements asynchronous streaming, and neither the model nor the call's keyword arguments disable
    it."""
    base = sys.modules["langchain_core.language_models.chat_models"].BaseChatModel
    return type(model)._astream is not base._astream and not model._streaming_disabled(**options)


def is_streaming_disabled(model: BaseChatModel, options: Mapping[str, Any]) -> bool:
    """Whether the model's fields or the call's keyword arguments disable streaming, also where a reader wants it."""
    return bool(model._streaming_disabled(**options))


def reads_stream(handler: object) -> bool:
    """Whether a callback handler makes LangChain stream a reply even where the whole reply is requested."""
    return isinstance(handler, _StreamingCallbackHandler | _V2StreamingCallbackHandler)


def _streams(model: BaseChatModel, manager: AsyncCallbackManagerForLLMRun, options: Mapping[str, Any]) -> bool:
    """Whether LangChain's `_agenerate_with_cache` would stream the reply."""
    asked: dict[str, Any] = {"async_api": True, "run_manager": manager, **options}
    return model._should_stream(**asked) or model._should_use_protocol_streaming(**asked)


async def _generate_from_chunks(
    model: BaseChatModel,
    messages: list[BaseMessage],
    manager: AsyncCallbackManagerForLLMRun,
    options: Mapping[str, Any],
    on_chunk: Callable[[BaseMessage], None],
) -> ChatResult:
    """Stream a model's reply and join the chunks as `_agenerate_with_cache` would, without a callback for each token.

    Each chunk gets metadata and, without one of its own, an id by the run of `manager`, and is passed to `on_chunk`.
    The stream is closed in any case. Raises `ValueError` for a stream without chunks.
    """
    from langchain_core.language_models.chat_models import _gen_info_and_msg_metadata, generate_from_stream

    chunks = []
    stream = model._astream(messages, **{"stop": None, **options})
    try:
        async for chunk in stream:
            message = chunk.message
            message.response_metadata = _gen_info_and_msg_metadata(chunk)
            if message.id is None:
                message.id = f"{LC_ID_PREFIX}-{manager.run_id}"
            on_chunk(message)
            chunks.append(chunk)
    finally:
        # A stream that is abandoned keeps its connection until it is collected.
        if (close := getattr(stream, "aclose", None)) is not None:
            await close()
    return generate_from_stream(iter(chunks))


def _has_plain_generation(model: BaseChatModel) -> bool:
    """Whether LangChain's `_agenerate_with_cache`, when it does not stream, only calls `_agenerate` and completes
    metadata. True only if nothing overrides it and the model has neither a cache nor a rate limiter nor output version
    `v1`."""
    own = vars(sys.modules["langchain_core.language_models.chat_models"])
    function = type(model)._agenerate_with_cache
    if type(function) is not FunctionType or function.__globals__ is not own:
        return False
    has_cache = model.cache or (model.cache is None and get_llm_cache() is not None)
    return not has_cache and model.rate_limiter is None and model.output_version != "v1"


async def _generate(
    model: BaseChatModel,
    messages: list[BaseMessage],
    manager: AsyncCallbackManagerForLLMRun,
    options: Mapping[str, Any],
) -> ChatResult:
    """Request a model's whole reply as `_agenerate_with_cache` would, without inspecting a signature for each reply.

    `manager` is the callback manager of the request, by whose run messages without an id get one; `options` are the
    keyword arguments of the call.
    """
    # Imported here: a process that sends no request does not need it.
    from langchain_core.language_models.chat_models import _gen_info_and_msg_metadata

    function = getattr(model._agenerate, "__func__", model._agenerate)
    given = {"stop": None, **options}
    if _takes_run_manager(function):
        given["run_manager"] = manager
    result = await model._agenerate(messages, **given)
    for at, generation in enumerate(result.generations):
        message = generation.message
        if message.id is None:
            message.id = f"{LC_ID_PREFIX}-{manager.run_id}-{at}"
        message.response_metadata = {
            **(result.llm_output or {} if len(result.generations) == 1 else {}),
            **_gen_info_and_msg_metadata(generation),
        }
    return result


@functools.lru_cache(maxsize=128)
def _takes_run_manager(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter `run_manager`."""
    return "run_manager" in _signature_parameters(function)
