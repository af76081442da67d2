"""Sorts the objects of the `hooks=` argument into loop hooks and middleware of the `langchain` package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from graph_agent.errors import ConfigError
from graph_agent.hooks.copies import copied
from graph_agent.hooks.protocol import LoopHook, OnError, tool_schema

_METHODS = ("should_run", "build_plan")


class HookList(NamedTuple):
    """The hooks of an agent."""

    hooks: tuple[LoopHook, ...]
    """Loop hooks that inspect replies, in call order."""
    rewriters: tuple[LoopHook, ...]
    """Loop hooks that rewrite the tool results of requests, in call order."""
    middleware: tuple[Any, ...]
    """`AgentMiddleware`, outermost first."""
    offered: list[dict[str, Any]]
    """OpenAI schemas of the tools that hooks offer."""


def sort_hooks(given: Sequence[Any]) -> HookList:
    """Sort loop hooks and middleware.

    Raises:
        ConfigError: If an object is neither, is a class instead of an instance, or has an invalid `on_error` or tool.
    """
    hooks: list[LoopHook] = []
    middleware: list[Any] = []
    offered: list[dict[str, Any]] = []
    for hook in given:
        if _is_middleware(hook):
            middleware.append(hook)
            continue
        if isinstance(hook, type):
            raise ConfigError(f"hooks: {hook.__name__} is a class; give an object of it: {hook.__name__}(…).")
        if not all(callable(getattr(hook, method, None)) for method in _METHODS):
            raise ConfigError(
                f"hooks: {hook!r} is no hook; give a LoopHook, with should_run and build_plan, or an AgentMiddleware."
            )
        on_error = getattr(hook, "on_error", "fail")
        if on_error not in get_args(OnError):
            raise ConfigError(f"hooks: {type(hook).__name__}.on_error={on_error!r}; write 'fail' or 'skip'.")
        try:
            offered += [copied(tool_schema(tool)) for tool in getattr(hook, "tools", ())]
        except ValueError as error:
            raise ConfigError(f"hooks: {type(hook).__name__}.tools: {error}") from error
        hooks.append(hook)
    rewriters = tuple(hook for hook in hooks if _overrides(hook, "rewrite_results"))
    # Pure rewriters are excluded, since a reply that no hook inspects can be streamed.
    reviewers = tuple(hook for hook in hooks if hook not in rewriters or _overrides(hook, "should_run"))
    return HookList(reviewers, rewriters, tuple(middleware), offered)


def _overrides(hook: Any, method: str) -> bool:
    """Whether a hook overrides a method of `LoopHook`, whose own methods do nothing."""
    own = getattr(type(hook), method, None)
    return own is not None and own is not getattr(LoopHook, method)


def _is_middleware(hook: Any) -> bool:
    types = sys.modules.get("langchain.agents.middleware.types")
    return types is not None and isinstance(hook, types.AgentMiddleware)
