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


def limit_met(step: int, turn: int, remaining_steps: int, settings: LoopConfig) -> tuple[StopReason, int] | None:
    """The limit that forbids another plan, and its size; None when there is none.

    Args:
        step: Plans made for this input.
        turn: Phase-1 model calls of the session.
        remaining_steps: Supersteps LangGraph still allows, this one included.
        settings: The limits.
    """
    if step >= settings.max_steps:
        return "step_limit", settings.max_steps
    if settings.max_turns is not None and turn >= settings.max_turns:
        return "turn_limit", settings.max_turns
    if step > 0 and remaining_steps < STEPS_FOR_A_WAVE:
        # LangGraph's recursion limit is the nearer one: what this run could do is what it has done.
        return "step_limit", step
    return None
