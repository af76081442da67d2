"""Model requests without LangChain's callbacks, for requests that nothing observes.

Callbacks cost more than the rest of a request: metadata, ids and a copy of the messages for tracing are made, whether
or not a handler exists. Tokens that a model reports itself still count for its time limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    BaseCallbackManager,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.utils.uuid import uuid7

from graph_agent._compat import generate_reply, has_own_entry_point, would_stream
from graph_agent.models.cleaning import is_text_only


def unobserved_model(
    runnable: object, options: Mapping[str, Any], config: RunnableConfig | None
) -> BaseChatModel | None:
    """Return the model of a request that no callback handler observes and whose reply is not streamed; else None.

    Args:
        runnable: The receiver of the request; None is returned for one that is no chat model, and for a chat model
            whose entry points are its own, or replaced by a program that instruments LangChain.
        options: Keyword arguments of the request.
        config: The request's config; None for that of the surrounding run.
    """
    if not isinstance(runnable, BaseChatModel) or has_own_entry_point(runnable) or would_stream(runnable, options):
        return None
    callbacks = (config or {}).get("callbacks") or (var_child_runnable_config.get() or {}).get("callbacks")
    if callbacks and (not isinstance(callbacks, BaseCallbackManager) or callbacks.handlers):
        return None
    # LangChain's own decision: it adds the handlers of tracing, of debug output and of context managers.
    manager = AsyncCallbackManager.configure(None, runnable.callbacks, runnable.verbose)
    return None if manager.handlers else runnable


async def request_unobserved(
    model: BaseChatModel,
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    handlers: list[BaseCallbackHandler],
) -> AIMessage:
    """Send one request as `model.ainvoke` does, with its cache and its rate limit.

    Args:
        model: The model.
        request: The messages.
        options: Keyword arguments of the request.
        handlers: Receive the tokens that a model without streaming methods reports; no other events.
    """
    manager = AsyncCallbackManagerForLLMRun(run_id=uuid7(), handlers=handlers, inheritable_handlers=handlers)
    return cast("AIMessage", await generate_reply(model, request, options, manager, is_text=is_text_only(request)))
