"""Which middleware can be run here, and by which of its methods."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from langchain.agents import middleware as shipped
from langchain.agents.middleware import AgentMiddleware, AgentState, PIIMiddleware

from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent.errors import ConfigError
from graph_agent.middleware.pii import around_request

Handler = Callable[[Any], Awaitable[Any]]
Wrap = Callable[[Any, Handler], Awaitable[Any]]
"""A request and what answers it → the answer, as langchain's `awrap_model_call` and `awrap_tool_call` have it."""

_AROUND_THE_LOOP = ("before_agent", "before_model", "after_model", "after_agent")


@dataclass(frozen=True, slots=True)
class Admitted:
    """One middleware's ways to wrap; None where it has none."""

    name: str
    model: Wrap | None
    tool: Wrap | None
    rewrites: bool
    """Whether it may rewrite replies, so that nobody may read one before it has seen the whole."""


def admit(middleware: AgentMiddleware[Any, Any, Any]) -> Admitted:
    """Find how a middleware wraps requests and calls.

    Raises:
        ConfigError: When it needs more than that: state or tools of its own, hooks of the loop, stream transformers.
    """
    if isinstance(middleware, PIIMiddleware):
        # It has no wrap_model_call; its two hooks do nothing but rewrite the messages of one request and its reply.
        return Admitted(middleware.name, around_request(middleware), None, middleware.apply_to_output)
    needs = _needs(middleware)
    if needs:
        raise ConfigError(
            f"hooks: the middleware {middleware.name} needs what this agent does not have: {'; '.join(needs)}. "
            "Only wrap_model_call and wrap_tool_call are run here."
        )
    model = _wrap(middleware, "model")
    return Admitted(middleware.name, model, _wrap(middleware, "tool"), model is not None and _rewrites(middleware))


def _rewrites(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    """Whether a middleware may rewrite replies: it says so in `rewrites_replies`, or nothing is known of it.

    Those of the `langchain` package leave replies as they are, and so does `dynamic_prompt`.
    """
    said = getattr(middleware, "rewrites_replies", None)
    if isinstance(said, bool):
        return said
    wrap = getattr(type(middleware), "awrap_model_call", None)
    made_by_dynamic_prompt = getattr(wrap, "__qualname__", "").startswith("dynamic_prompt.")
    return type(middleware) not in vars(shipped).values() and not made_by_dynamic_prompt


def _needs(middleware: AgentMiddleware[Any, Any, Any]) -> list[str]:
    needs: list[str] = []
    if fields := sorted(_fields(middleware.state_schema) - _fields(AgentState)):
        needs.append(f"state fields of its own ({', '.join(fields)})")
    if tools := [tool.name for tool in getattr(middleware, "tools", ())]:
        needs.append(f"tools of its own ({', '.join(tools)})")
    if hooks := [hook for hook in _AROUND_THE_LOOP if _has(middleware, hook) or _has(middleware, f"a{hook}")]:
        needs.append(f"hooks of another loop ({', '.join(hooks)})")
    if any(_jumps(middleware, hook) or _jumps(middleware, f"a{hook}") for hook in hooks):
        needs.append("jump_to")
    if middleware.transformers:
        needs.append("stream transformers")
    return needs


def _fields(schema: Any) -> set[str]:
    if hasattr(schema, "__required_keys__"):
        return set(schema.__required_keys__ | schema.__optional_keys__)
    return set(getattr(schema, "__annotations__", {}))


def _has(middleware: AgentMiddleware[Any, Any, Any], method: str) -> bool:
    return getattr(type(middleware), method) is not getattr(AgentMiddleware, method)


def _jumps(middleware: AgentMiddleware[Any, Any, Any], method: str) -> bool:
    return bool(getattr(getattr(type(middleware), method), "__can_jump_to__", None))


def _wrap(middleware: AgentMiddleware[Any, Any, Any], what: str) -> Wrap | None:
    if _has(middleware, f"awrap_{what}_call"):
        wrap: Wrap = getattr(middleware, f"awrap_{what}_call")
        return wrap
    if _has(middleware, f"wrap_{what}_call"):
        return _from_a_thread(getattr(middleware, f"wrap_{what}_call"))
    return None


def _from_a_thread(wrap: Callable[[Any, Callable[[Any], Any]], Any]) -> Wrap:
    """A blocking wrap as a coroutine: it runs in a daemon thread, and what it calls runs in the loop again."""

    async def wrapped(request: Any, handler: Handler) -> Any:
        bridge = _LoopBridge(asyncio.get_running_loop())
        try:
            return await call_in_thread(wrap, request, lambda again: bridge.run(_awaited(handler, again)))
        finally:
            bridge.close()

    return wrapped


async def _awaited(handler: Handler, request: Any) -> Any:
    return await handler(request)


class _LoopBridge:
    """Runs coroutines in an event loop for a thread that waits for them, until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: Future[Any] | None = None
        self._closed = threading.Event()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and wait for it; called in the thread.

        Raises:
            CancelledError: When the bridge is closed, since the thread was given up.
        """
        if self._closed.is_set():
            work.close()
            raise CancelledError
        self._running = asyncio.run_coroutine_threadsafe(work, self._loop)
        if self._closed.is_set():
            self._running.cancel()
        return self._running.result()

    def close(self) -> None:
        """Cancel the coroutine that runs, and refuse every further one."""
        self._closed.set()
        if self._running is not None:
            self._running.cancel()
