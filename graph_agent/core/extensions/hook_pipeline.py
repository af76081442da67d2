"""Orders the hooks of middleware that are nodes of the graph.

`before_agent` and `after_agent` run once an input, `before_model` and `after_model` around each model request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import TracePolicy

BEFORE_AGENT = "before_agent"
BEFORE_MODEL = "before_model"
AFTER_MODEL = "after_model"
AFTER_AGENT = "after_agent"


@dataclass(frozen=True, slots=True)
class MiddlewareNode:
    """One hook of an `AgentMiddleware`, which the graph runs as a node."""

    owner: str
    """Name of the middleware."""
    point: str
    """`before_agent`, `before_model`, `after_model` or `after_agent`."""
    run: Callable[[Mapping[str, Any], RunnableConfig], Coroutine[Any, Any, dict[str, Any]]]
    """Runs the hook: takes the state and the node's config, returns an update, which is empty if nothing changes."""
    jumps: tuple[str, ...] = ()
    """Destinations that the hook declares for `jump_to`: `end`, `model`, `tools`."""
    rewrites: bool = False
    """Whether the hook may rewrite answers.

    If so, answers that need no model call (such as a tool's direct result) also pass it.
    """
    trace_policy: TracePolicy | None = None
    """What tracers record of the node; None for everything."""

    @property
    def node(self) -> str:
        """Name of the node: `<middleware>.<point>`, such as `PIIMiddleware.before_model`."""
        return f"{self.owner}.{self.point}"


@dataclass(frozen=True, slots=True)
class MiddlewareNodes:
    """The hook nodes of an agent's middleware by point, each in the order in which they run."""

    before_agent: tuple[MiddlewareNode, ...] = ()
    before_model: tuple[MiddlewareNode, ...] = ()
    after_model: tuple[MiddlewareNode, ...] = ()
    after_agent: tuple[MiddlewareNode, ...] = ()

    def __iter__(self) -> Iterator[MiddlewareNode]:
        yield from (*self.before_agent, *self.before_model, *self.after_model, *self.after_agent)

    @property
    def rewrites(self) -> bool:
        """Whether an `after_model` hook may rewrite an answer."""
        return any(hook.rewrites for hook in self.after_model)

    @property
    def supersteps(self) -> int:
        """Maximum number of supersteps that hooks, the node `model` and the return to `plan` add to one step of
        planning; at least 4. All but the hooks around the agent count twice."""
        # An answer after planning passes the hooks of the model a second time.
        return 2 * (len(self.before_model) + len(self.after_model) + 2) + len(self.before_agent) + len(self.after_agent)

    @property
    def entry(self) -> str:
        """Name of the first node before each model request; `model` without `before_model` hooks."""
        return self.before_model[0].node if self.before_model else "model"

    @property
    def start(self) -> str:
        """Name of the first node after `plan` at the begin of an input: the first `before_agent` hook, else the node
        `entry` names."""
        return self.before_agent[0].node if self.before_agent else self.entry

    @property
    def review(self) -> str:
        """Name of the first node after each reply of the model: the first `after_model` hook, else `plan`."""
        # `plan` acts on the reply as the last hook left it.
        return self.after_model[0].node if self.after_model else "plan"

    @property
    def exit(self) -> str:
        """Name of the first node after the last reply of an input: the first `after_agent` hook, else `finalize`."""
        return self.after_agent[0].node if self.after_agent else "finalize"
