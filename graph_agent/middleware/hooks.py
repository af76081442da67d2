"""The `before_` and `after_` hooks of middleware: which ones a middleware has, and one run of a hook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Command

from graph_agent._compat import can_jump_to, dual_runnable, is_overridden
from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent._internal.sync_bridge import in_blocking_run
from graph_agent.hooks.pipeline import (
    AFTER_AGENT,
    AFTER_MODEL,
    BEFORE_AGENT,
    BEFORE_MODEL,
    HookReturnError,
    HookSet,
    NodeHook,
)

_POINTS = (BEFORE_AGENT, BEFORE_MODEL, AFTER_MODEL, AFTER_AGENT)


def node_hooks(middleware: AgentMiddleware[Any, Any, Any], *, rewrites: bool) -> dict[str, NodeHook]:
    """Return the hooks that a middleware defines, by point.

    Args:
        middleware: The middleware.
        rewrites: Whether it may rewrite replies.
    """
    found: dict[str, NodeHook] = {}
    for point in _POINTS:
        sync = getattr(middleware, point) if is_overridden(middleware, AgentMiddleware, point) else None
        coroutine = (
            getattr(middleware, f"a{point}") if is_overridden(middleware, AgentMiddleware, f"a{point}") else None
        )
        if sync is None and coroutine is None:
            continue
        found[point] = NodeHook(
            middleware.name,
            point,
            _Method(sync, coroutine, middleware.name),
            tuple(can_jump_to(middleware, point)),
            rewrites,
        )
    return found


def hook_set(hooks: list[dict[str, NodeHook]]) -> HookSet:
    """Return the hooks of all middleware in the order in which they run: `after_` hooks in reverse."""

    def of(point: str) -> tuple[NodeHook, ...]:
        return tuple(each[point] for each in hooks if point in each)

    return HookSet(of(BEFORE_AGENT), of(BEFORE_MODEL), of(AFTER_MODEL)[::-1], of(AFTER_AGENT)[::-1])


@dataclass(frozen=True, slots=True)
class _Method:
    """One hook of one middleware, blocking, asynchronous, or both.

    Parameters such as `runtime` and `config` are injected as LangGraph does for nodes.
    """

    sync: Any
    coroutine: Any
    name: str

    async def __call__(self, state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
        """Run the hook and return its update."""
        blocking = self.sync is not None and (self.coroutine is None or in_blocking_run.get())
        runnable: Runnable[Any, Any] = dual_runnable(self.sync if blocking else None, self.coroutine, self.name)
        if blocking:
            returned = await call_in_thread(runnable.invoke, state, config)
        else:
            returned = await runnable.ainvoke(state, config)
        return self._update_of(returned)

    def _update_of(self, returned: Any) -> dict[str, Any]:
        if isinstance(returned, Command):
            if returned.goto or returned.graph or returned.resume:
                raise HookReturnError(f"it returned {returned!r}; return an update with `jump_to` instead.")
            returned = returned.update
        if returned is None:
            return {}
        if not isinstance(returned, Mapping):
            raise HookReturnError(f"it returned {returned!r}; return a dict of state fields, or None.")
        return dict(returned)
