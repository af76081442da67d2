"""Model requests without LangChain's callbacks, for requests that nothing observes.

Callbacks cost more than the rest of a request: metadata, ids, a copy of the messages for tracing and a task for each
request are made, whether or not a handler exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForLLMRun, BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.utils.uuid import uuid7

from graph_agent._compat import generate_reply, would_stream

_ENTRY_POINTS = ("ainvoke", "agenerate_prompt", "agenerate")


def unobserved_model(
    runnable: object, options: Mapping[str, Any], config: RunnableConfig | None
) -> BaseChatModel | None:
    """Return the model of a request that no callback handler observes and whose reply is not streamed; else None.

    Args:
        runnable: The receiver of the request; None is returned for one that is no chat model, and for a chat model with
            an entry point of its own.
        options: Keyword arguments of the request.
        config: The request's config; None for that of the surrounding run.
    """
    if not isinstance(runnable, BaseChatModel) or would_stream(runnable, options):
        return None
    if any(getattr(type(runnable), name) is not getattr(BaseChatModel, name) for name in _ENTRY_POINTS):
        return None
    callbacks = (config or {}).get("callbacks") or (var_child_runnable_config.get() or {}).get("callbacks")
    # LangChain's own decision: it adds the handlers of tracing, of debug output and of context managers.
    manager = AsyncCallbackManager.configure(callbacks, runnable.callbacks, runnable.verbose)
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
    reply = await generate_reply(model, request, options, manager)
    assert isinstance(reply, AIMessage)
    return reply
