"""Lets every saver serve every event loop.

LangGraph's blocking savers have no asynchronous methods, and its asynchronous ones belong to the event loop in which
they were made. Runs of agents call asynchronous methods only, on the loop of the program or on the background loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from graph_agent.base._internal.sync_bridge import call_in_thread, running_loop

if TYPE_CHECKING:
    # LangGraph takes long to import, and commands that only read a database do not need it.
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

T = TypeVar("T")

_SERVES = "serves_any_loop"
"""Attribute that is True on a saver that `serve_any_loop` has already treated."""
_IN_MEMORY = "langgraph.checkpoint.memory"
"""Module of LangGraph's saver that keeps checkpoints in memory and never waits, so that every loop can use it."""
_METHODS = (
    *("aget_tuple", "aput", "aput_writes", "adelete_thread", "aget_delta_channel_history"),
    *("find_input", "stored_notes", "forget_notes"),
)
"""Asynchronous methods of a saver; the blocking ones have the same names without the `a`.

Those of the second line exist in some savers of this package only, and have no blocking form.
"""


def foreign_loop(saver: BaseCheckpointSaver[Any]) -> asyncio.AbstractEventLoop | None:
    """Return the event loop that a saver belongs to if that loop runs in another thread.

    None if the saver can be awaited in the current loop.
    """
    loop = getattr(saver, "loop", None)
    is_foreign = isinstance(loop, asyncio.AbstractEventLoop) and loop is not running_loop() and loop.is_running()
    return loop if is_foreign else None


def serve_any_loop(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch a saver's asynchronous methods, in place, to work on every event loop; does nothing the second time.

    A method of a saver that belongs to another running loop is awaited on that loop. Where the asynchronous methods
    raise `NotImplementedError`, the blocking ones are called in a thread. Any other saver works as before; the methods
    of LangGraph's saver in memory are not patched.
    """
    if getattr(saver, _SERVES, False):
        return
    # Patched in place: `database_key` reads the saver's connection, which a wrapper would hide.
    if type(saver).__module__ != _IN_MEMORY:
        for name in filter(partial(hasattr, saver), _METHODS):
            setattr(saver, name, _served(saver, name))
        saver.alist = _served_list(saver)  # type: ignore[method-assign]
    setattr(saver, _SERVES, True)


def _unpatched(saver: BaseCheckpointSaver[Any], name: str) -> Callable[[], Callable[..., Any]]:
    """Return a function that returns a saver's method as it was before this module's patch.

    The method is looked up at each call, because `fence_writes` may replace the saver's class.
    """
    own = vars(saver).get(name)
    return lambda: own or partial(getattr(type(saver), name), saver)


def _served(saver: BaseCheckpointSaver[Any], name: str) -> Callable[..., Awaitable[Any]]:
    """Return the asynchronous method to set in place of the saver's own of that name."""
    own, blocking = _unpatched(saver, name), _unpatched(saver, name.removeprefix("a"))

    # LangGraph reads the parameters of `aput_writes`.
    @wraps(getattr(saver, name))
    async def call(*args: Any, **options: Any) -> Any:
        if (loop := foreign_loop(saver)) is not None:
            return await awaited_on(loop, own()(*args, **options))
        try:
            return await own()(*args, **options)
        except NotImplementedError:  # some savers define the methods only to raise this
            return await call_in_thread(partial(blocking(), *args, **options))

    return call


def _served_list(saver: BaseCheckpointSaver[Any]) -> Callable[..., AsyncIterator[CheckpointTuple]]:
    """Return the asynchronous method to set in place of the saver's own `alist`.

    On another loop than the saver's, or for a blocking saver, whose `list` is called in a thread, all checkpoints are
    read before the first is yielded.
    """
    own, blocking = _unpatched(saver, "alist"), _unpatched(saver, "list")

    async def call(config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        async def listed() -> list[CheckpointTuple]:
            return [found async for found in own()(config, **options)]

        try:
            if (loop := foreign_loop(saver)) is None:
                async for found in own()(config, **options):
                    yield found
                return
            all_found = await awaited_on(loop, listed())
        except NotImplementedError:
            # Read at once: a blocking saver may hold a lock between two checkpoints.
            all_found = await call_in_thread(lambda: [*blocking()(config, **options)])
        for found in all_found:
            yield found

    return call


async def awaited_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine on the event loop of another thread, and return its result or raise its exception here."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
