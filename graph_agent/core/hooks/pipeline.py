"""Orders the hooks that are nodes of the graph."""

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
    """One hook, which the graph runs as a node."""

    owner: str
    """Name of the middleware."""
    point: str
    """`before_agent`, `before_model`, `after_model` or `after_agent`."""
    run: Callable[[Mapping[str, Any], RunnableConfig], Coroutine[Any, Any, dict[str, Any]]]
    """Takes the state and the node's config; returns an update, empty if nothing changes."""
    jumps: tuple[str, ...] = ()
    """Destinations that it declares for `jump_to`: `end`, `model`, `tools`."""
    rewrites: bool = False
    """Whether it may rewrite an answer, so that it also sees answers that no model produced."""
    trace_policy: TracePolicy | None = None
    """What tracers record of its node; None for everything."""

    @property
    def node(self) -> str:
        """The name of its node."""
        return f"{self.owner}.{self.point}"


@dataclass(frozen=True, slots=True)
class MiddlewareNodes:
    """The hooks of an agent, in the order in which they run."""

    before_agent: tuple[MiddlewareNode, ...] = ()
    before_model: tuple[MiddlewareNode, ...] = ()
    after_model: tuple[MiddlewareNode, ...] = ()
    after_agent: tuple[MiddlewareNode, ...] = ()

    def __iter__(self) -> Iterator[MiddlewareNode]:
        yield from (*self.before_agent, *self.before_model, *self.after_model, *self.after_agent)

    @property
    def rewrites(self) -> bool:
        """Whether some `after_model` hook may rewrite an answer."""
        return any(hook.rewrites for hook in self.after_model)

    @property
    def supersteps(self) -> int:
        """Supersteps that hooks, the model's own node and the return to `plan` add to a step."""
        return 2 * (len(self.before_model) + len(self.after_model) + 2) + len(self.before_agent) + len(self.after_agent)

    @property
    def entry(self) -> str:
        """The first node before each request to the model."""
        return self.before_model[0].node if self.before_model else "model"

    @property
    def start(self) -> str:
        """The first node of an input, after `plan`."""
        return self.before_agent[0].node if self.before_agent else self.entry

    @property
    def review(self) -> str:
        """The first node after each reply of the model."""
        return self.after_model[0].node if self.after_model else "plan"

    @property
    def exit(self) -> str:
        """The first node after the last reply."""
        return self.after_agent[0].node if self.after_agent else "finalize"
