"""A loop hook with a fixed plan."""

from __future__ import annotations

from typing import Any

from langchain.agents.middleware import AgentMiddleware

from graph_agent import LoopHook, LoopPlan
from graph_agent.hooks import HookRequest, HookResponse

DONE = '{"status": "done", "tools": []}'
"""A structured plan without calls."""
RERUN = LoopPlan(run_agentic_loop=True)
"""A rerun of the same request."""


class FixedPlanHook(LoopHook):
    """Return the same plan for the first `times` replies, and record `(depth, calls)` of each reply."""

    def __init__(self, plan: LoopPlan, *, times: int = 1, on_error: Any = "fail") -> None:
        self.plan = plan
        self.times = times
        self.on_error = on_error
        self.seen: list[tuple[int, list[str]]] = []

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        self.seen.append((request.depth, [call["name"] for call in response.calls]))
        return len(self.seen) <= self.times, "context"

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        assert context == "context"
        return self.plan


class Passing(AgentMiddleware[Any, Any, Any]):
    """A hook that changes nothing."""

    rewrites_replies = False

    def after_model(self, state: Any, runtime: Any) -> None:
        """Do nothing."""
