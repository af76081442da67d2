"""Running code that is not ours beside the loop: what models of its own say is heard here, and streamed to nobody."""

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

from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent.models.retry import QUIET


class Meter(BaseCallbackHandler):
    """Hears each reply of the models that some code asks by itself.

    Args:
        heard: Given each reply.
    """

    run_inline = True

    def __init__(self, heard: Callable[[AIMessage], None]) -> None:
        self._heard = heard

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        """Hear one reply."""
        for generations in response.generations:
            first = generations[0] if generations else None
            if isinstance(first, ChatGeneration) and isinstance(first.message, AIMessage):
                self._heard(first.message)


@contextlib.contextmanager
def aside(heard: Callable[[AIMessage], None]) -> Iterator[contextvars.Context]:
    """A context in which model calls are heard by `heard` and left out of the run's message stream."""
    config = merge_configs(ensure_config(), QUIET, {"callbacks": [Meter(heard)]})
    with set_config_context(config) as context:
        # A copy: a thread that was given up may be in it still when this one is closed.
        yield context.copy()


async def call_aside(method: Callable[..., Any], *args: Any, heard: Callable[[AIMessage], None]) -> Any:
    """Call a function or coroutine function beside the loop; a function runs in a thread, so it may block.

    Args:
        method: What to call.
        args: Its arguments.
        heard: Given each reply of a model that it asks.

    Raises:
        BaseException: What it raised.
    """
    with aside(heard) as context:
        if inspect.iscoroutinefunction(method):
            return await _in_task(method(*args), context)
        made = await call_in_thread(context.run, method, *args)
        if not inspect.isawaitable(made):
            return made
        return await _in_task(made, context)


async def _in_task(made: Awaitable[Any], context: contextvars.Context) -> Any:
    returned, exited = await asyncio.create_task(_contained(made), context=context)
    if exited is not None:
        raise exited
    return returned


async def _contained(made: Awaitable[Any]) -> tuple[Any, SystemExit | None]:
    try:
        return await made, None
    except SystemExit as error:
        # Out of a task it would end the whole event loop, and with it everybody's runs.
        return None, error
