"""Checks which middleware is supported, and extracts its wrap methods."""

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
from graph_agent.middleware.pii import wrap_with_pii

Handler = Callable[[Any], Awaitable[Any]]
Wrap = Callable[[Any, Handler], Awaitable[Any]]
"""(request, handler) → response, as for langchain's `awrap_model_call` and `awrap_tool_call`."""

_LOOP_HOOKS = ("before_agent", "before_model", "after_model", "after_agent")


@dataclass(frozen=True, slots=True)
class WrapMethods:
    """The wrap methods of one middleware; None for a missing method."""

    name: str
    model: Wrap | None
    tool: Wrap | None
    rewrites: bool
    """Whether it may rewrite replies, so that a reply is not streamed before it has processed the whole reply."""


def admit(middleware: AgentMiddleware[Any, Any, Any]) -> WrapMethods:
    """Return the wrap methods of a middleware.

    Raises:
        ConfigError: If it needs unsupported features: own state or tools, loop hooks, or stream transformers.
    """
    if isinstance(middleware, PIIMiddleware):
        # It has no wrap_model_call; its two hooks only rewrite the messages of one request and its reply.
        return WrapMethods(middleware.name, wrap_with_pii(middleware), None, middleware.apply_to_output)
    needs = _needs(middleware)
    if needs:
        raise ConfigError(
            f"hooks: the middleware {middleware.name} needs what this agent does not have: {'; '.join(needs)}. "
            "Only wrap_model_call and wrap_tool_call are run here."
        )
    model = _wrap(middleware, "model")
    return WrapMethods(middleware.name, model, _wrap(middleware, "tool"), model is not None and _rewrites(middleware))


def _rewrites(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    """Whether a middleware may rewrite replies: its `rewrites_replies` if set, else True for unknown middleware.

    The `langchain` package's own middleware and `dynamic_prompt` leave replies unchanged.
    """
    declared = getattr(middleware, "rewrites_replies", None)
    if isinstance(declared, bool):
        return declared
    wrap = getattr(type(middleware), "awrap_model_call", None)
    made_by_dynamic_prompt = getattr(wrap, "__qualname__", "").startswith("dynamic_prompt.")
    return type(middleware) not in vars(shipped).values() and not made_by_dynamic_prompt


def _needs(middleware: AgentMiddleware[Any, Any, Any]) -> list[str]:
    needs: list[str] = []
    if fields := sorted(_field_names(middleware.state_schema) - _field_names(AgentState)):
        needs.append(f"state fields of its own ({', '.join(fields)})")
    if tools := [tool.name for tool in getattr(middleware, "tools", ())]:
        needs.append(f"tools of its own ({', '.join(tools)})")
    if hooks := [hook for hook in _LOOP_HOOKS if _has_method(middleware, hook) or _has_method(middleware, f"a{hook}")]:
        needs.append(f"hooks of another loop ({', '.join(hooks)})")
    if any(_jumps(middleware, hook) or _jumps(middleware, f"a{hook}") for hook in hooks):
        needs.append("jump_to")
    if middleware.transformers:
        needs.append("stream transformers")
    return needs


def _field_names(schema: Any) -> set[str]:
    if hasattr(schema, "__required_keys__"):
        return set(schema.__required_keys__ | schema.__optional_keys__)
    return set(getattr(schema, "__annotations__", {}))


def _has_method(middleware: AgentMiddleware[Any, Any, Any], method: str) -> bool:
    return getattr(type(middleware), method) is not getattr(AgentMiddleware, method)


def _jumps(middleware: AgentMiddleware[Any, Any, Any], method: str) -> bool:
    return bool(getattr(getattr(type(middleware), method), "__can_jump_to__", None))


def _wrap(middleware: AgentMiddleware[Any, Any, Any], kind: str) -> Wrap | None:
    if _has_method(middleware, f"awrap_{kind}_call"):
        wrap: Wrap = getattr(middleware, f"awrap_{kind}_call")
        return wrap
    if _has_method(middleware, f"wrap_{kind}_call"):
        return _run_in_thread(getattr(middleware, f"wrap_{kind}_call"))
    return None


def _run_in_thread(wrap: Callable[[Any, Callable[[Any], Any]], Any]) -> Wrap:
    """Convert a blocking wrap method to a coroutine function.

    The method runs in a daemon thread; its handler runs in the event loop.
    """

    async def wrapped(request: Any, handler: Handler) -> Any:
        bridge = _LoopBridge(asyncio.get_running_loop())
        try:
            return await call_in_thread(wrap, request, lambda inner: bridge.run(_call_handler(handler, inner)))
        finally:
            bridge.close()

    return wrapped


async def _call_handler(handler: Handler, request: Any) -> Any:
    return await handler(request)


class _LoopBridge:
    """Runs coroutines in an event loop on behalf of a waiting thread, until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: Future[Any] | None = None
        self._closed = threading.Event()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and wait for it; called in the thread.

        Raises:
            CancelledError: If the bridge is closed, since nothing waits for the thread any more.
        """
        if self._closed.is_set():
            work.close()
            raise CancelledError
        self._running = asyncio.run_coroutine_threadsafe(work, self._loop)
        if self._closed.is_set():
            self._running.cancel()
        return self._running.result()

    def close(self) -> None:
        """Cancel the running coroutine, and refuse further ones."""
        self._closed.set()
        if self._running is not None:
            self._running.cancel()
