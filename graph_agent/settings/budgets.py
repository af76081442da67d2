"""Computes budgets of an input (seconds, tokens, cost, with a reserve for the answer), and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage

from graph_agent.settings.config import LoopConfig, Price
from graph_agent.types import StopReason, Usage

BUDGET_LEFT = "__graph_agent_budget_left"
"""Key in a delegated run's `configurable`: the result of the delegating run's `RemainingBudget.as_json`."""
STEPS_TO_FINALIZE = 2
"""Supersteps that LangGraph must still allow (`RemainingSteps`) for `finalize`."""
STEPS_FOR_A_WAVE = STEPS_TO_FINALIZE + 2
"""Supersteps that it must still allow for a wave, its return to `plan`, and `finalize`."""

LOGGED = {
    "step_limit": "Max agentic iterations reached without final response",
    "recursion_limit": "LangGraph's recursion limit of %g supersteps reached without final response",
    "turn_limit": "The session's model turn limit of %g reached without final response",
    "token_limit": "The token budget of %g reached without final response",
    "cost_limit": "The cost budget of %g reached without final response",
    "deadline": "The deadline of %g s reached without final response",
}
"""Log message for each limit that ends planning, by name; `%g` is its size."""

LimitMet = tuple[StopReason, float]
"""The limit that ends planning, and its size."""


@dataclass(frozen=True, slots=True)
class BudgetUsage:
    """Usage of an input so far, compared with its budgets."""

    seconds: float = 0.0
    """Working time."""
    tokens: int = 0
    cost: float = 0.0
    """In the price table's currency."""
    last_tokens: int = 0
    """Tokens of the newest model call, the estimate for the next one; 0 before the first."""
    last_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class RemainingBudget:
    """Budget that an input may still use; None for no limit."""

    deadline_s: float | None = None
    tokens: int | None = None
    cost: float | None = None

    def shared_by(self, shares: int) -> RemainingBudget:
        """Return one of several equal shares of tokens and cost; time is not divided, as the shares run in parallel."""
        return RemainingBudget(
            self.deadline_s,
            None if self.tokens is None else self.tokens // shares,
            None if self.cost is None else self.cost / shares,
        )

    def as_json(self) -> dict[str, float | int | None]:
        """Return it as plain JSON."""
        return {"deadline_s": self.deadline_s, "tokens": self.tokens, "cost": self.cost}


def has_budget(settings: LoopConfig) -> bool:
    """Whether time, tokens or cost is limited."""
    return (settings.deadline_s, settings.max_tokens_total, settings.max_cost) != (None, None, None)


def budget_met(spent: BudgetUsage, settings: LoopConfig) -> tuple[StopReason, float] | None:
    """Return the budget that cannot hold another plan and the answer, and its size; None if each can.

    Args:
        spent: Usage of the input.
        settings: The budgets, and the share of each that is kept for the answer.
    """
    if settings.deadline_s is not None and spent.seconds >= work_s(settings.deadline_s, settings):
        return "deadline", settings.deadline_s
    limit = settings.max_tokens_total
    if limit is not None and spent.tokens + spent.last_tokens + _reserve(limit, spent.last_tokens, settings) > limit:
        return "token_limit", limit
    cost = settings.max_cost
    if cost is not None and spent.cost + spent.last_cost + _reserve(cost, spent.last_cost, settings) > cost:
        return "cost_limit", cost
    return None


def work_s(deadline_s: float, settings: LoopConfig) -> float:
    """Return the seconds of a deadline that planning and calls may take."""
    return deadline_s * (1 - settings.answer_reserve)


def _reserve(limit: float, last: float, settings: LoopConfig) -> float:
    # The answer's request contains the last one, so it uses at least as much.
    return max(limit * settings.answer_reserve, last)


def exhausted(spent: BudgetUsage, settings: LoopConfig) -> tuple[StopReason, float] | None:
    """Return the budget that is used up, the reserve for the answer included, and its size; None if there is none."""
    if settings.deadline_s is not None and spent.seconds >= settings.deadline_s:
        return "deadline", settings.deadline_s
    if settings.max_tokens_total is not None and spent.tokens >= settings.max_tokens_total:
        return "token_limit", settings.max_tokens_total
    if settings.max_cost is not None and spent.cost >= settings.max_cost:
        return "cost_limit", settings.max_cost
    return None


def budget_for_delegates(spent: BudgetUsage, settings: LoopConfig) -> RemainingBudget:
    """Return the budget of delegates: the remaining one without the reserve for the answer, at least 0."""
    deadline, tokens, cost = settings.deadline_s, settings.max_tokens_total, settings.max_cost
    return RemainingBudget(
        None if deadline is None else max(0.0, work_s(deadline, settings) - spent.seconds),
        None if tokens is None else max(0, int(tokens - spent.tokens - _reserve(tokens, spent.last_tokens, settings))),
        None if cost is None else max(0.0, cost - spent.cost - _reserve(cost, spent.last_cost, settings)),
    )


def tighten_limits(settings: LoopConfig, left: Mapping[str, Any] | None) -> LoopConfig:
    """Lower a run's budgets to the remaining budget of the delegating run.

    Args:
        settings: The run's own configuration.
        left: The delegating run's `RemainingBudget.as_json`; None for a run without one.
    """
    values: dict[str, Any] = {}
    for field, key, least in _TIGHTENED:
        given, own = (left or {}).get(key), getattr(settings, field)
        if isinstance(given, int | float) and (own is None or given < own):
            values[field] = max(given, least)
    return settings.with_values(values)


_TIGHTENED = (("deadline_s", "deadline_s", 1e-3), ("max_tokens_total", "tokens", 1), ("max_cost", "cost", 1e-9))
"""Field of `LoopConfig`, key of `RemainingBudget.as_json`, and the smallest value the field accepts."""


def cost_of(reply: AIMessage, prices: Mapping[str, Price]) -> float:
    """Return the cost of one model call, by the price of the model that the reply names.

    A model that is not in the table is priced by the longest name there that is a prefix of its own, such as
    `gpt-4o-mini` for `gpt-4o-mini-2024-07-18`; else by the highest price, so that no limit is exceeded unnoticed.
    """
    used = reply.usage_metadata
    if not prices or not used:
        return 0.0
    price = price_of(
        str(reply.response_metadata.get("model_name") or reply.response_metadata.get("model") or ""), prices
    )
    cached = used.get("input_token_details", {}).get("cache_read", 0) if price.cached_input is not None else 0
    fresh = used["input_tokens"] - cached
    return (fresh * price.input + cached * (price.cached_input or 0.0) + used["output_tokens"] * price.output) / 1e6


def price_of(model: str, prices: Mapping[str, Price]) -> Price:
    """Return the price of a model; see `cost_of`."""
    prefixes = [name for name in prices if model.startswith(name)]
    if prefixes:
        return prices[max(prefixes, key=len)]
    return max(prices.values(), key=lambda price: price.input + price.output)


def usage_of(reply: AIMessage, prices: Mapping[str, Price] | None = None) -> Usage:
    """Return the usage of one model call, as reported by the provider; 0 for unreported figures.

    Args:
        prices: Prices of models; empty or None to leave out the cost.
    """
    used = reply.usage_metadata
    usage: Usage = {
        "input_tokens": used["input_tokens"] if used else 0,
        "output_tokens": used["output_tokens"] if used else 0,
        "total_tokens": used["total_tokens"] if used else 0,
        "model_calls": 1,
    }
    return {**usage, "cost": cost_of(reply, prices)} if prices else usage


class LimitMetError(Exception):
    """Raised when a limit forbids another plan; the input ends."""

    def __init__(self, reason: StopReason, limit: float) -> None:
        super().__init__(f"{reason}: {limit}")
        self.reason: StopReason = reason
        self.limit = limit


def limit_met(step: int, turn: int, settings: LoopConfig) -> tuple[StopReason, int] | None:
    """Return the step or turn limit that forbids another plan, and its size; None if there is none.

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
