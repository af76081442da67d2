"""Computes usage and remaining time of a run's input."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage

from graph_agent.runs.run import Run
from graph_agent.settings.budgets import BudgetUsage, cost_of, work_s
from graph_agent.settings.config import LoopConfig
from graph_agent.state.schema import LoopState
from graph_agent.types import Usage


def spent(run: Run, loop: LoopState, usage: Usage, history: Sequence[AnyMessage], settings: LoopConfig) -> BudgetUsage:
    """Return the usage of the input so far.

    Args:
        loop: The loop state.
        usage: Tokens and model calls of the input.
        history: The conversation; its newest reply is the estimate for the next model call.
    """
    # The first model call of an input has no estimate: the calls of earlier inputs predict it badly.
    last = _newest_reply(history) if usage["model_calls"] else None
    used = last.usage_metadata if last is not None else None
    return BudgetUsage(
        seconds=run.worked_s(loop.get("worked_s", 0.0)),
        tokens=usage["total_tokens"],
        cost=usage.get("cost", 0.0),
        last_tokens=used["total_tokens"] if used else 0,
        last_cost=cost_of(last, settings.prices) if last is not None else 0.0,
    )


def _newest_reply(history: Sequence[AnyMessage]) -> AIMessage | None:
    return next((message for message in reversed(history) if isinstance(message, AIMessage)), None)


def work_left_s(run: Run, loop: LoopState, settings: LoopConfig) -> float | None:
    """Return the seconds that planning and calls may still take; None without a deadline."""
    if settings.deadline_s is None:
        return None
    return max(0.0, work_s(settings.deadline_s, settings) - run.worked_s(loop.get("worked_s", 0.0)))


def answer_left_s(run: Run, loop: LoopState, settings: LoopConfig) -> float | None:
    """Return the seconds that the answer may still take; None without a deadline."""
    if settings.deadline_s is None:
        return None
    return max(0.0, settings.deadline_s - run.worked_s(loop.get("worked_s", 0.0)))
