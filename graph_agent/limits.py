"""When planning must stop."""

from __future__ import annotations

from graph_agent.config import LoopConfig
from graph_agent.types import StopReason

# What LangGraph still has to allow, as `RemainingSteps` counts it, for `finalize`, and for a wave that comes back.
STEPS_TO_FINALIZE = 2
STEPS_FOR_A_WAVE = STEPS_TO_FINALIZE + 2

LimitMet = tuple[StopReason, float]
"""Which limit, and its size."""


class LimitMetError(Exception):
    """The model is to be asked once more for a plan, and a limit forbids it; the input ends there."""

    def __init__(self, reason: StopReason, limit: float) -> None:
        super().__init__(f"{reason}: {limit}")
        self.reason: StopReason = reason
        self.limit = limit


RECURSION_LIMIT = "recursion_limit"
"""LangGraph's own limit of a run's supersteps, as the reason of a `limit` event; its `stop_reason` is `step_limit`."""

LOGGED = {
    "step_limit": "Max agentic iterations reached without final response",
    RECURSION_LIMIT: (
        "LangGraph's recursion limit of %g supersteps reached without final response; "
        "raise 'recursion_limit' in the run's config"
    ),
    "turn_limit": "The session's model turn limit of %g reached without final response",
    "token_limit": "The token budget of %g reached without final response",
    "cost_limit": "The cost budget of %g reached without final response",
    "deadline": "The deadline of %g s reached without final response",
}
"""What the log says of a limit that ends planning, by its name; `%g` is its size."""


def limit_met(step: int, turn: int, settings: LoopConfig) -> tuple[StopReason, int] | None:
    """The limit of the configuration that forbids another plan, and its size; None when there is none.

    Args:
        step: Plans made for this input.
        turn: Phase-1 model calls of the session.
        settings: The limits.
    """
    if step >= settings.max_steps:
        return "step_limit", settings.max_steps
    if settings.max_turns is not None and turn >= settings.max_turns:
        return "turn_limit", settings.max_turns
    return None
