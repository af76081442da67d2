"""Counts token usage and cost, estimates unreported usage, and compares it with the limits and budgets of an input.

A request may cause further model calls: one that was cut off, one whose reply middleware dropped, one that middleware
made itself. The code that makes such a call records it here, and the sender of the request adds it to its usage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.settings.config import LoopConfig, Price
from graph_agent.base.types import NO_USAGE, StopReason, Usage

ESTIMATED = "graph_agent_usage_estimated"
"""Key in `response_metadata` of a reply whose usage is an estimate."""


def add_usage(left: Usage | None, right: Usage | None) -> Usage:
    """Reducer of ``usage``: the field-wise sum, or only the right value if it is `fresh`."""
    left, right = left or NO_USAGE, right or NO_USAGE
    if "fresh" in right:
        left = NO_USAGE
    usage: Usage = {
        "input_tokens": left["input_tokens"] + right["input_tokens"],
        "output_tokens": left["output_tokens"] + right["output_tokens"],
        "total_tokens": left["total_tokens"] + right["total_tokens"],
        "model_calls": left["model_calls"] + right["model_calls"],
    }
    if "cost" in left or "cost" in right:
        usage["cost"] = left.get("cost", 0.0) + right.get("cost", 0.0)
    return usage


def less_usage(usage: Usage, counted: Usage) -> Usage:
    """Return the field-wise difference, at least 0 in each field."""
    difference: Usage = {
        "input_tokens": max(0, usage["input_tokens"] - counted["input_tokens"]),
        "output_tokens": max(0, usage["output_tokens"] - counted["output_tokens"]),
        "total_tokens": max(0, usage["total_tokens"] - counted["total_tokens"]),
        "model_calls": max(0, usage["model_calls"] - counted["model_calls"]),
    }
    if "cost" in usage:
        difference["cost"] = max(0.0, usage["cost"] - counted.get("cost", 0.0))
    return difference


def fresh(usage: Usage) -> Usage:
    """Return the write that resets ``usage`` to this value."""
    return {**usage, "fresh": True}


_COUNTS = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}


@dataclass(slots=True)
class TimedRequest:
    """One request to a model, measured from its construction; recorded by `end`."""

    model: str
    """Name of the model as configured, or its kind."""
    kind: str
    """LangChain's type of the model without its suffix, such as `openai`."""
    messages: Sequence[BaseMessage]
    """The messages of the request, in the form for the model."""
    options: Mapping[str, Any]
    """Keyword arguments of the request, such as `tools`."""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    duration_s: float = 0.0
    """Seconds to the end of the reply, or to the error."""
    first_token_s: float | None = None
    """Seconds to the first token; None if the reply was not streamed."""
    reply: AIMessage | None = None
    """The reply; of a request that was cut off, what had arrived. None after an error."""
    error: str = ""
    """Kind of the model's error, or `cancelled`; empty for a complete reply."""
    _since: float = field(default_factory=time.monotonic)

    _is_nested: bool = False

    @classmethod
    def to(cls, model: Any, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Self:
        """Start to measure a request to a model."""
        kind = getattr(model, "_llm_type", "") or type(model).__name__
        return cls(
            name_of_model(model) or kind,
            kind.removesuffix("-chat"),
            messages,
            options,
            _is_nested=getattr(model, "sends_requests", False),
        )

    def receive(self) -> None:
        """Record the time of the first token."""
        if self.first_token_s is None:
            self.first_token_s = time.monotonic() - self._since

    def end(self, reply: AIMessage | None, error: str = "") -> None:
        """Record the request for the code within `metered`, with its reply or its error."""
        self.duration_s, self.reply, self.error = time.monotonic() - self._since, reply, error
        if self._is_nested:
            return
        if telemetry.observer is not None:
            telemetry.observer.model_call(self)
        if (extra := _extra_usage.get()) is not None:
            extra.timed.append(self)


@dataclass(slots=True)
class ExtraUsage:
    """Model calls of one request other than the one that returned its reply."""

    replies: list[AIMessage] = field(default_factory=list)
    """Replies that are not counted elsewhere, with their usage."""
    cut_off: AIMessage | None = None
    """The reply among them that was cut off; None if there is none."""
    uncalled: int = 0
    """Number of replies that are counted elsewhere but did not come from a model."""
    timed: list[TimedRequest] = field(default_factory=list)
    """Every request to a model, also of replies that are counted elsewhere."""
    warnings: list[str] = field(default_factory=list)
    """What a developer should know of the model's endpoint, in full sentences."""
    replaced: list[tuple[str, AIMessage | None]] = field(default_factory=list)
    """Name of middleware that replaced a reply → the model's own reply; None if no model was asked."""


_extra_usage: ContextVar[ExtraUsage | None] = ContextVar("graph_agent_extra_usage", default=None)


@contextmanager
def metered() -> Iterator[ExtraUsage]:
    """Collect the calls recorded for the request that is sent within the context."""
    extra = ExtraUsage()
    token = _extra_usage.set(extra)
    try:
        yield extra
    finally:
        _extra_usage.reset(token)


def record_replies(replies: Sequence[AIMessage], *, uncalled: int = 0) -> None:
    """Record replies that the request does not return; `uncalled` returned ones did not come from a model."""
    if (extra := _extra_usage.get()) is not None:
        extra.replies += replies
        extra.uncalled += uncalled


def record_replaced(name: str, reply: AIMessage | None) -> None:
    """Record the reply that middleware has replaced by another, for an event; None if it asked no model."""
    if (extra := _extra_usage.get()) is not None:
        extra.replaced.append((name, reply))


def record_warning(warning: str) -> None:
    """Record a warning about the model's endpoint, for an event; a full sentence."""
    if (extra := _extra_usage.get()) is not None:
        extra.warnings.append(warning)


def record_cut_off(
    model: Any,
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    text: str = "",
    reported: UsageMetadata | None = None,
) -> AIMessage | None:
    """Record a call that was cut off; return the part of its reply, with its usage, or None outside `metered`.

    `text` is what was received, `reported` the usage so far, if any.
    """
    if (extra := _extra_usage.get()) is None:
        return None
    extra.cut_off = cut_off_reply(request, text, reported, model=name_of_model(model), tools=options.get("tools"))
    extra.replies.append(extra.cut_off)
    return extra.cut_off


def name_of_model(model: Any) -> str:
    """Return a model's name as configured; empty if it has none."""
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return name if isinstance(name, str) else ""


def with_usage(
    reply: AIMessage,
    request: Sequence[BaseMessage],
    settings: LoopConfig,
    tools: Sequence[dict[str, Any]] | None = None,
) -> AIMessage:
    """Complete the usage of a reply: estimated if it reports none, or zeros, and a budget needs it."""
    reported: Mapping[str, Any] | None = reply.usage_metadata
    if reported is not None and not reported.keys() >= _COUNTS.keys():
        # LangChain gives a reply from a model's cache only its cost.
        return reply.model_copy(update={"usage_metadata": {**_COUNTS, **reported}})
    # Some servers report zeros.
    is_reported = reported is not None and reported["total_tokens"] > 0
    if is_reported or (settings.max_tokens_total is None and settings.max_cost is None):
        return reply
    used = estimated_usage(request, reply, tools)
    return reply.model_copy(
        update={"usage_metadata": used, "response_metadata": {**reply.response_metadata, ESTIMATED: True}}
    )


def cut_off_reply(
    request: Sequence[BaseMessage],
    text: str,
    reported: UsageMetadata | None,
    *,
    model: str = "",
    tools: Sequence[dict[str, Any]] | None = None,
) -> AIMessage:
    """Build the partial message of a reply that was cut off, with its usage as reported so far, else estimated.

    The provider's figures cover at most the start of the reply. The model's name is for its price.
    """
    used = estimated_usage(request, AIMessage(text), tools)
    asked = (reported["input_tokens"] if reported else 0) or used["input_tokens"]
    answered = max(reported["output_tokens"] if reported else 0, used["output_tokens"] if text else 0)
    # Details, such as cached input tokens, are the provider's.
    figures = UsageMetadata(
        **{**(reported or used), "input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered}
    )
    return AIMessage(text, usage_metadata=figures, response_metadata={"model_name": model, ESTIMATED: True})


def estimated_usage(
    request: Sequence[BaseMessage], reply: BaseMessage, tools: Sequence[dict[str, Any]] | None = None
) -> UsageMetadata:
    """Estimate the tokens of a request and its reply, at about four characters per token."""
    asked = estimated_tokens(request, tools=list(tools) if tools else None)
    answered = estimated_tokens([reply])
    return UsageMetadata(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered)


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
    """Return the budget that cannot hold another plan and the answer, and its size; None if each can."""
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
    """Lower a run's budgets to what is left of the delegating run's, as `RemainingBudget.as_json`, if there is one."""
    values: dict[str, Any] = {}
    for name, key, least in _TIGHTENED:
        given, own = (left or {}).get(key), getattr(settings, name)
        if isinstance(given, int | float) and (own is None or given < own):
            values[name] = max(given, least)
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
    """Return the usage of one model call, 0 for unreported figures; without prices, the cost is left out."""
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
    """Return the limit of steps or of the session's turns that forbids another plan, and its size; None without one."""
    if step >= settings.max_steps:
        return "step_limit", settings.max_steps
    if settings.max_turns is not None and turn >= settings.max_turns:
        return "turn_limit", settings.max_turns
    return None
