"""Takes middleware apart: its wrap methods, hooks, tools and state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from langchain.agents import middleware as shipped
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, PIIMiddleware

from graph_agent._compat import is_overridden
from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent.errors import ConfigError
from graph_agent.hooks.pipeline import AFTER_AGENT, AFTER_MODEL, NodeHook
from graph_agent.middleware.hooks import node_hooks

Handler = Callable[[Any], Awaitable[Any]]
Wrap = Callable[[Any, Handler], Awaitable[Any]]
"""(request, handler) → response, as for langchain's `awrap_model_call` and `awrap_tool_call`."""


@dataclass(frozen=True, slots=True)
class AdmittedMiddleware:
    """The parts of one middleware."""

    name: str
    model: Wrap | None
    """Its `awrap_model_call`; None for none."""
    tool: Wrap | None
    """Its `awrap_tool_call`; None for none."""
    rewrites: bool
    """Whether it may rewrite replies, so that a reply is not streamed before it has processed the whole reply."""
    hooks: dict[str, NodeHook]
    """Its `before_` and `after_` hooks, by point."""
    tools: tuple[Any, ...]
    state_schema: Any
    transformers: tuple[Any, ...]
    """Its stream transformers."""
    asks: bool
    """Whether it asks a person for approvals."""


def admit(middleware: Sequence[AgentMiddleware[Any, Any, Any]]) -> list[AdmittedMiddleware]:
    """Return the parts of an agent's middleware.

    Raises:
        ConfigError: If two with hooks have the same name, which names their nodes.
    """
    admitted = [_admit(one) for one in middleware]
    names = [one.name for one in admitted if one.hooks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"hooks: two middleware are named {', '.join(twice)}; remove one, or give it a `name` of its own."
        )
    return admitted


def _admit(middleware: AgentMiddleware[Any, Any, Any]) -> AdmittedMiddleware:
    model, rewrites = _wrap(middleware, "model"), _rewrites(middleware)
    hooks = node_hooks(middleware, rewrites=rewrites)
    return AdmittedMiddleware(
        middleware.name,
        model,
        _wrap(middleware, "tool"),
        rewrites and (model is not None or AFTER_MODEL in hooks or AFTER_AGENT in hooks),
        hooks,
        tuple(getattr(middleware, "tools", ())),
        middleware.state_schema,
        tuple(middleware.transformers),
        isinstance(middleware, HumanInTheLoopMiddleware),
    )


def _rewrites(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    """Whether a middleware may rewrite replies: its `rewrites_replies` if set, else True for unknown middleware.

    The middleware of `langchain` and `deepagents` and `dynamic_prompt` leave replies unchanged, except `PIIMiddleware`
    for the output.
    """
    if isinstance(middleware, PIIMiddleware):
        return bool(middleware.apply_to_output)
    declared = getattr(middleware, "rewrites_replies", None)
    if isinstance(declared, bool):
        return declared
    wrap = getattr(type(middleware), "awrap_model_call", None)
    made_by_dynamic_prompt = getattr(wrap, "__qualname__", "").startswith("dynamic_prompt.")
    of_deepagents = type(middleware).__module__.split(".")[0] == "deepagents"
    return not of_deepagents and type(middleware) not in vars(shipped).values() and not made_by_dynamic_prompt


def _wrap(middleware: AgentMiddleware[Any, Any, Any], kind: str) -> Wrap | None:
    if is_overridden(middleware, AgentMiddleware, f"awrap_{kind}_call"):
        wrap: Wrap = getattr(middleware, f"awrap_{kind}_call")
        return wrap
    if is_overridden(middleware, AgentMiddleware, f"wrap_{kind}_call"):
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
