"""Separates LangChain middleware into its wrap methods, hooks, tools and state.

A wrap method (`wrap_model_call`, `wrap_tool_call`) runs around a request or call; a hook (`before_agent` and others) is
a node of the graph at one of four points.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, PIIMiddleware
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Command

from graph_agent.base._compat import can_jump_to, dual_runnable, is_overridden, trace_policy_of, with_context
from graph_agent.base._internal.sync_bridge import call_in_thread, in_blocking_run
from graph_agent.base.errors import ConfigError, HookError
from graph_agent.base.settings.config import user_context
from graph_agent.core.extensions.hook_failures import mark_raised
from graph_agent.core.extensions.hook_pipeline import (
    AFTER_AGENT,
    AFTER_MODEL,
    BEFORE_AGENT,
    BEFORE_MODEL,
    MiddlewareNode,
    MiddlewareNodes,
)
from graph_agent.core.extensions.invoke import belongs_to_run

_POINTS = (BEFORE_AGENT, BEFORE_MODEL, AFTER_MODEL, AFTER_AGENT)
"""Names of the points at which middleware can have a hook."""

Handler = Callable[[Any], Awaitable[Any]]
"""Sends a request on, to the next middleware or to the model or tool, and returns the response."""
Wrap = Callable[[Any, Handler], Awaitable[Any]]
"""Coroutine function of a request and a handler that returns the response: langchain's `awrap_model_call` or
`awrap_tool_call`."""
_SEE_REPLIES = tuple(
    f"{prefix}{name}" for name in ("wrap_model_call", AFTER_MODEL, AFTER_AGENT) for prefix in ("", "a")
)
"""Names of the middleware methods that receive a model's reply, and so could rewrite it."""
_KEEP_REPLIES = (
    "langchain.agents.middleware.",
    "deepagents.",
    "langchain_anthropic.middleware.",
    "langchain_aws.middleware.",
    "langchain_openai.middleware.model_router",
)
"""Prefixes of modules whose middleware is known to leave replies unchanged, except for `PIIMiddleware`."""
_OF_DECORATORS = "langchain.agents.middleware.types"
"""Module of the classes that decorators make of a user's function."""


def node_hooks(middleware: AgentMiddleware[Any, Any, Any], *, rewrites: bool) -> dict[str, MiddlewareNode]:
    """Return the hooks of one middleware that become graph nodes, as point → hook; empty if it overrides none.

    Args:
        middleware: The middleware; only methods that it overrides count.
        rewrites: Whether the middleware may rewrite replies of the model; stored in the hooks.
    """
    found: dict[str, MiddlewareNode] = {}
    for point in _POINTS:
        sync = getattr(middleware, point) if is_overridden(middleware, AgentMiddleware, point) else None
        coroutine = (
            getattr(middleware, f"a{point}") if is_overridden(middleware, AgentMiddleware, f"a{point}") else None
        )
        if sync is None and coroutine is None:
            continue
        found[point] = MiddlewareNode(
            middleware.name,
            point,
            _Method(sync, coroutine, middleware.name),
            tuple(can_jump_to(middleware, point)),
            rewrites,
            trace_policy_of(middleware),
        )
    return found


def hook_set(hooks: list[dict[str, MiddlewareNode]]) -> MiddlewareNodes | None:
    """Collect the hooks of all middleware by point, in the order in which they run: `after_` hooks in reverse. None if
    there is no hook.

    Args:
        hooks: For each middleware in order, point → hook.
    """
    if not any(hooks):
        return None

    def of(point: str) -> tuple[MiddlewareNode, ...]:
        return tuple(each[point] for each in hooks if point in each)

    return MiddlewareNodes(of(BEFORE_AGENT), of(BEFORE_MODEL), of(AFTER_MODEL)[::-1], of(AFTER_AGENT)[::-1])


@dataclass(frozen=True, slots=True)
class _Method:
    """One hook method of one middleware, in its blocking form, its asynchronous form, or both.

    Parameters such as `runtime` and `config` are injected as LangGraph does for nodes.
    """

    sync: Any
    coroutine: Any
    name: str

    async def __call__(self, state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
        """Run the hook, and return the state update that it requests; an empty dict if the hook returns None.

        The asynchronous form is preferred, except within a blocking run (such as `invoke`), where a blocking form comes
        first. A blocking form runs in a thread.

        Args:
            state: The state for the hook.
            config: The node's config.

        Raises:
            HookError: The return value is no update.
            Exception: The hook raised it.
        """
        config = with_context(config, user_context)
        # A blocking run executes nodes on another loop, on which a program's own clients may not work.
        blocking = self.sync is not None and (self.coroutine is None or in_blocking_run.get())
        runnable: Runnable[Any, Any] = dual_runnable(self.sync if blocking else None, self.coroutine, self.name)
        if blocking:
            returned = await call_in_thread(runnable.invoke, state, config)
        else:
            returned = await runnable.ainvoke(state, config)
        return self._update_of(returned)

    def _update_of(self, returned: Any) -> dict[str, Any]:
        """Convert a hook's return value to a dict of state fields; None becomes an empty one.

        Raises:
            HookError: It is a command with `goto`, `graph` or `resume`, or of another type.
        """
        if isinstance(returned, Command):
            if returned.goto or returned.graph or returned.resume:
                # LangGraph would follow the command and leave the loop's order of hooks.
                raise HookError(f"it returned {returned!r}; return an update with `jump_to` instead.")
            returned = returned.update
        if returned is None:
            return {}
        if not isinstance(returned, Mapping):
            raise HookError(f"it returned {returned!r}; return a dict of state fields, or None.")
        return dict(returned)


@dataclass(frozen=True, slots=True)
class AdmittedMiddleware:
    """The parts of one `AgentMiddleware` that this package uses."""

    name: str
    model: Wrap | None
    """The middleware's `wrap_model_call` as a coroutine function; None if it defines none."""
    tool: Wrap | None
    """The middleware's `wrap_tool_call` as a coroutine function; None if it defines none."""
    rewrites: bool
    """Whether it may rewrite replies, so that no reply is streamed before the middleware has processed the whole."""
    undeclared: tuple[str, ...]
    """Names of the methods that may rewrite replies, if the middleware does not set `rewrites_replies`.

    Empty if it does.
    """
    hooks: dict[str, MiddlewareNode]
    """Point → the middleware's hook there."""
    tools: tuple[Any, ...]
    """Tools that the middleware adds to the agent."""
    state_schema: Any
    transformers: tuple[Any, ...]
    """Stream transformers that the middleware adds to the graph."""
    asks: bool
    """Whether it is LangChain's `HumanInTheLoopMiddleware`, which asks a person for approvals."""

    @property
    def adds_tools(self) -> bool:
        """Whether the middleware may add tools to model requests and run their calls itself.

        True if it wraps both model requests and tool calls.
        """
        return self.model is not None and self.tool is not None


def admit(middleware: Sequence[AgentMiddleware[Any, Any, Any]]) -> list[AdmittedMiddleware]:
    """Read the parts of an agent's middleware, in order.

    Raises:
        ConfigError: Two middleware with hooks have the same name, which would give their nodes the same name.
    """
    admitted = [_admit(one) for one in middleware]
    # Without hooks, middleware has no node, and equal names do no harm.
    names = [one.name for one in admitted if one.hooks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"hooks: two middleware are named {', '.join(twice)}; remove one, or give it a `name` of its own."
        )
    return admitted


def _admit(middleware: AgentMiddleware[Any, Any, Any]) -> AdmittedMiddleware:
    """Return the parts of one middleware: its wraps and hooks, its tools, state schema and stream transformers.

    Names of methods that rewrite replies are included only if the middleware neither declares `rewrites_replies` nor
    only masks.
    """
    rewriting = _rewriting(middleware)
    model, rewrites = _wrap(middleware, "model"), bool(rewriting)
    hooks = node_hooks(middleware, rewrites=rewrites)
    return AdmittedMiddleware(
        middleware.name,
        model,
        _wrap(middleware, "tool"),
        rewrites,
        rewriting if getattr(middleware, "rewrites_replies", None) is None and not _masks(middleware) else (),
        hooks,
        tuple(getattr(middleware, "tools", ())),
        middleware.state_schema,
        tuple(middleware.transformers),
        isinstance(middleware, HumanInTheLoopMiddleware),
    )


def _rewriting(middleware: AgentMiddleware[Any, Any, Any]) -> tuple[str, ...]:
    """Return the names of a middleware's methods that may rewrite replies; empty if none may.

    The attribute `rewrites_replies` decides if it is set: all overridden methods that receive a reply, or none. Without
    it, and for a `PIIMiddleware` that masks output, each of these methods counts unless the class that defines it is
    known to leave replies unchanged.
    """
    found = tuple(name for name in _SEE_REPLIES if is_overridden(middleware, AgentMiddleware, name))
    declared = getattr(middleware, "rewrites_replies", None)
    if isinstance(declared, bool) and not _masks(middleware):
        return found if declared else ()
    return tuple(name for name in found if _may_rewrite(middleware, name))


def _masks(middleware: AgentMiddleware[Any, Any, Any]) -> bool:
    """Whether a middleware is LangChain's `PIIMiddleware` and masks personal data in replies."""
    return isinstance(middleware, PIIMiddleware) and middleware.apply_to_output


def _may_rewrite(middleware: AgentMiddleware[Any, Any, Any], name: str) -> bool:
    """Whether a middleware's method may change the text of replies, by the class that defines the method.

    False for known modules, for a `PIIMiddleware` that does not mask output, and for LangChain's `dynamic_prompt`; True
    for any other class.

    Args:
        middleware: The middleware.
        name: Name of the method, which it overrides.
    """
    # The class that defines the method, as a subclass may override another one only.
    owner = next(each for each in type(middleware).__mro__ if name in vars(each))
    if owner is PIIMiddleware:
        return bool(middleware.apply_to_output)  # type: ignore[attr-defined]  # the class is in its MRO
    if owner.__module__ == _OF_DECORATORS:
        return not getattr(vars(owner)[name], "__qualname__", "").startswith("dynamic_prompt.")
    return not owner.__module__.startswith(_KEEP_REPLIES)


def _wrap(middleware: AgentMiddleware[Any, Any, Any], kind: str) -> Wrap | None:
    """Return a middleware's `wrap_model_call` or `wrap_tool_call` as a coroutine function; None if it overrides neither
    form.

    The blocking form is used if there is no other, or in a blocking run, and runs in a thread. Exceptions that the
    method raises itself are marked with its name.

    Args:
        middleware: The middleware.
        kind: `model` or `tool`.
    """
    found = [f"{prefix}wrap_{kind}_call" for prefix in ("a", "")]
    name = f"{middleware.name}.{found[1]}"
    coroutine, blocking = (is_overridden(middleware, AgentMiddleware, name) for name in found)
    if not blocking:
        return _marked(getattr(middleware, found[0]), name) if coroutine else None
    in_thread = _run_in_thread(getattr(middleware, found[1]))
    if not coroutine:
        return _marked(in_thread, name)
    wrap: Wrap = getattr(middleware, found[0])

    async def by_run(request: Any, handler: Handler) -> Any:
        return await (in_thread if in_blocking_run.get() else wrap)(request, handler)

    return _marked(by_run, name)


def _marked(wrap: Wrap, name: str) -> Wrap:
    """Return a wrap method that calls `wrap`, and marks the exceptions that `wrap` raises itself.

    Not marked are exceptions of its handler, also as the cause of another one, and those that belong to the run.

    Args:
        wrap: The wrap method.
        name: Name that `hook_that_raised` returns for a marked exception.
    """

    async def marked(request: Any, handler: Handler) -> Any:
        passed: list[BaseException] = []

        async def observed(inner: Any) -> Any:
            try:
                return await handler(inner)
            except BaseException as error:
                # A wrapper that lets the handler's exception pass has not failed itself.
                passed.append(error)
                raise

        try:
            return await wrap(request, observed)
        except (Exception, SystemExit) as error:
            if not belongs_to_run(error) and not any(one is error or one is error.__cause__ for one in passed):
                mark_raised(error, name)
            raise

    return marked


def _run_in_thread(wrap: Callable[[Any, Callable[[Any], Any]], Any]) -> Wrap:
    """Return a blocking wrap method as a coroutine function, which runs the method in a daemon thread and its handler
    in the event loop.

    If the coroutine is cancelled, the handler is cancelled, too, and later calls of the handler by the thread raise
    `CancelledError`.
    """

    async def wrapped(request: Any, handler: Handler) -> Any:
        bridge = _LoopBridge(asyncio.get_running_loop())
        try:
            return await call_in_thread(wrap, request, lambda inner: bridge.run(_call_handler(handler, inner)))
        finally:
            bridge.close()

    return wrapped


async def _call_handler(handler: Handler, request: Any) -> Any:
    """Await the handler's response. A coroutine function, because a handler may return any awaitable."""
    return await handler(request)


class _LoopBridge:
    """Lets a thread run coroutines in an event loop and wait for their results, until the bridge is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: Future[Any] | None = None
        self._closed = threading.Event()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop, wait for it, and return its result; called in the thread.

        Raises:
            CancelledError: The bridge is closed, because nothing waits for the thread any more; the coroutine is then
                closed or cancelled.
            Exception: The coroutine raised it.
        """
        if self._closed.is_set():
            work.close()
            raise CancelledError
        self._running = asyncio.run_coroutine_threadsafe(work, self._loop)
        # `close` may have run between the check and the start.
        if self._closed.is_set():
            self._running.cancel()
        return self._running.result()

    def close(self) -> None:
        """Cancel the running coroutine, and refuse further ones; called in the loop."""
        self._closed.set()
        if self._running is not None:
            self._running.cancel()
