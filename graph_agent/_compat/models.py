"""Imports LangChain's private names behind a chat model's request.

Like those of `_compat`, each has a test that fails when it moves: `tests/internal/test_compat.py`.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.globals import get_llm_cache
from langchain_core.language_models._utils import _normalize_messages
from langchain_core.messages import BaseMessage
from langchain_core.utils._signature import _signature_parameters
from langchain_core.utils.utils import LC_ID_PREFIX

if TYPE_CHECKING:
    # Imported in a function where it is called: a process that sends no request does not need it.
    from langchain_core.language_models import BaseChatModel
    from langchain_core.outputs import ChatResult

_ENTRY_POINTS = ("ainvoke", "agenerate_prompt", "agenerate", "_convert_input")
"""Methods of a chat model between a caller and `_agenerate_with_cache`."""
_TRACED_OPTIONS = ("ls_structured_output_format", "structured_output_format")
"""Keyword arguments of a model that only traces receive."""


def traced_parameters(model: BaseChatModel, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata that LangChain adds to a request of a chat model."""
    return model._get_ls_params_with_defaults(**{k: v for k, v in options.items() if k not in _TRACED_OPTIONS})


def has_own_entry_point(model: BaseChatModel) -> bool:
    """Whether a chat model, or a program that instruments LangChain, replaces one of `_ENTRY_POINTS`."""
    own = vars(sys.modules["langchain_core.language_models.chat_models"])
    functions = [getattr(type(model), name) for name in _ENTRY_POINTS]
    return any(type(function) is not FunctionType or function.__globals__ is not own for function in functions)


async def generate_reply(
    model: BaseChatModel,
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    manager: AsyncCallbackManagerForLLMRun,
    *,
    is_text: bool,
) -> ChatResult:
    """Generate a reply as `BaseChatModel.agenerate` does, without the events of its begin and its end.

    The manager receives the tokens. `is_text` is whether the content of each message is a text.
    """
    given = {name: value for name, value in options.items() if name not in _TRACED_OPTIONS}
    # Only content blocks have a form to normalize.
    messages = list(request) if is_text else _normalize_messages(request)
    if _has_plain_generation(model) and not _streams(model, manager, given):
        work = _generate(model, messages, manager, given)
    else:
        work = model._agenerate_with_cache(messages, run_manager=manager, **given)
    # A task, as LangChain makes: the model's context variables stay its own.
    return await asyncio.create_task(work)


def _streams(model: BaseChatModel, manager: AsyncCallbackManagerForLLMRun, options: Mapping[str, Any]) -> bool:
    """Whether `_agenerate_with_cache` would stream the reply."""
    asked: dict[str, Any] = {"async_api": True, "run_manager": manager, **options}
    return model._should_stream(**asked) or model._should_use_protocol_streaming(**asked)


def _has_plain_generation(model: BaseChatModel) -> bool:
    """Whether `_agenerate_with_cache`, if it does not stream, only calls `_agenerate` and completes the metadata."""
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
    """Generate as `_agenerate_with_cache` does for a plain generation; that inspects a signature for each reply."""
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
    return "run_manager" in _signature_parameters(function)
