"""Counts the model calls that user code makes, and keeps them out of the run's message stream."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables.config import ensure_config, merge_configs, set_config_context

from graph_agent._internal.sync_bridge import call_in_thread
from graph_agent.models.retry import QUIET


class Meter(BaseCallbackHandler):
    """A callback handler that reports each model reply.

    Args:
        on_reply: Receives each reply.
    """

    run_inline = True

    def __init__(self, on_reply: Callable[[AIMessage], None]) -> None:
        self._on_reply = on_reply

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        """Report one reply."""
        for generations in response.generations:
            first = generations[0] if generations else None
            if isinstance(first, ChatGeneration) and isinstance(first.message, AIMessage):
                self._on_reply(first.message)


@contextlib.contextmanager
def side_call_context(on_reply: Callable[[AIMessage], None]) -> Iterator[contextvars.Context]:
    """Yield a context whose model calls are reported to `on_reply` and kept out of the run's message stream."""
    config = merge_configs(ensure_config(), QUIET, {"callbacks": [Meter(on_reply)]})
    with set_config_context(config) as context:
        # A copy: an abandoned thread may still use it after this context has exited.
        yield context.copy()


async def run_side_call(method: Callable[..., Any], *args: Any, on_reply: Callable[[AIMessage], None]) -> Any:
    """Call a function or coroutine function; a function runs in a thread, so it may block.

    Args:
        on_reply: Receives the reply of each model call that it makes.

    Raises:
        BaseException: Any exception of the function.
    """
    with side_call_context(on_reply) as context:
        if inspect.iscoroutinefunction(method):
            return await _in_task(method(*args), context)
        made = await call_in_thread(context.run, method, *args)
        if not inspect.isawaitable(made):
            return made
        return await _in_task(made, context)


async def _in_task(made: Awaitable[Any], context: contextvars.Context) -> Any:
    returned, exited = await asyncio.create_task(_await_contained(made), context=context)
    if exited is not None:
        raise exited
    return returned


async def _await_contained(made: Awaitable[Any]) -> tuple[Any, SystemExit | None]:
    try:
        return await made, None
    except SystemExit as error:
        # Raised in a task, it would end the event loop with all its runs.
        return None, error
