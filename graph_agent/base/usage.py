"""Counts token usage and cost, estimates unreported usage, and compares usage with the limits of an input.

A request may cause model calls whose replies it does not return: one that was cut off, one whose reply middleware
dropped, one that middleware made itself. The code that makes such a call records it here; the sender of the request,
which reads it from `extra_usage`, adds it to the usage.

Parts of limits in other files:

- `base/settings/config.py`: `LoopConfig`, which holds the limits
- `nodes/plan.py`: the rules `stop_at_abort_or_budget` and `stop_at_limit`
- `core/planning/update.py`: `stop_at_limit`, which ends the planning of an input
- `core/execution/run_call.py`: `budget_met`, before a call
- `core/state/schema.py`: `LimitsSoFar`, keys of the loop
- `base/history/events.py`: `LimitEvent`
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.settings.config import LoopConfig, Price
from graph_agent.base.types import NO_USAGE, StopReason, Usage

ESTIMATED = "graph_agent_usage_estimated"
"""Key in a reply's `response_metadata`: True if its usage is an estimate."""


def add_usage(left: Usage | None, right: Usage | None) -> Usage:
    """Return the field-wise sum of two usages, where None counts as no usage; only `right` if it has `fresh`.

    The sum has a `cost` if one of them has it. The reducer of the state field `usage`.
    """
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
    """Return the difference `usage` minus `counted`, field by field; no field is below 0. It has a `cost` if `usage`
    has it."""
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
    """Return a state update that sets the usage to this value, where other updates are added."""
    return {**usage, "fresh": True}


_COUNTS = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}


@dataclass(slots=True)
class TimedRequest:
    """One model request, whose duration is measured from construction on; `end` records it."""

    model: str
    """The model's configured name, or LangChain's type of it."""
    kind: str
    """LangChain's type of the model without the suffix `-chat`, such as `openai`."""
    messages: Sequence[BaseMessage]
    """The messages of the request, in the form in which they were sent."""
    options: Mapping[str, Any]
    """Keyword arguments of the call, such as `tools`."""
    started: datetime = field(default_factory=partial(datetime.now, UTC))
    duration_s: float = 0.0
    """Seconds until the reply or the error; 0 before `end`."""
    first_token_s: float | None = None
    """Seconds to the first token; None if the reply was not streamed."""
    reply: AIMessage | None = None
    """The reply; for a request that was cut off, the part that had arrived. None after an error."""
    error: str = ""
    """Kind of the model's error, or `cancelled`; empty after a complete reply."""
    _since: float = field(default_factory=time.monotonic)

    _is_nested: bool = False

    @classmethod
    def to(cls, model: Any, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Self:
        """Create the measurement of a request to `model`, which begins now.

        `messages` and `options` are those of the request.
        """
        kind = getattr(model, "_llm_type", "") or type(model).__name__
        return cls(
            name_of_model(model) or kind,
            kind.removesuffix("-chat"),
            messages,
            options,
            _is_nested=_class_of_model(type(model)).sends_requests,
        )

    def receive(self) -> None:
        """Record the time of the first token; later calls do nothing."""
        if self.first_token_s is None:
            self.first_token_s = time.monotonic() - self._since

    def end(self, reply: AIMessage | None, error: str = "") -> None:
        """End the measurement, and record it for telemetry and for the sender's `extra_usage`.

        A request of a model that only forwards requests to another one is not recorded.

        Args:
            reply: The reply; None after an error.
            error: Kind of the error, or `cancelled`; empty for a complete reply.
        """
        self.duration_s, self.reply, self.error = time.monotonic() - self._since, reply, error
        # The model that is asked in the end records the request itself.
        if self._is_nested:
            return
        if telemetry.observer is not None:
            telemetry.observer.model_call(self)
        if (extra := extra_usage.get()) is not None:
            extra.timed.append(self)


@dataclass(slots=True)
class ExtraUsage:
    """What happened during one request apart from the reply that it returned, so that all usage and events are
    counted.

    The sender of the request puts it into `extra_usage`, where the `record_…` functions find it.
    """

    replies: list[AIMessage] = field(default_factory=list)
    """Replies that are counted nowhere else, with their usage."""
    cut_off: AIMessage | None = None
    """The one of `replies` that was cut off; None if there is none."""
    uncalled: int = 0
    """Number of replies returned by the request that no model wrote, e.g. made by middleware."""
    timed: list[TimedRequest] = field(default_factory=list)
    """Every model request, including those of returned replies."""
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Pairs of type and fields: events of the request, such as warnings, and calls that the provider ran."""
    replaced: list[tuple[str, AIMessage | None]] = field(default_factory=list)
    """Pairs of the name of a middleware that replaced a reply and the model's own reply; None if no model was asked."""


extra_usage: ContextVar[ExtraUsage | None] = ContextVar("graph_agent_extra_usage", default=None)
"""Receives what the `record_…` functions record; None outside of a request, where they do nothing."""


def record_replies(replies: Sequence[AIMessage], *, uncalled: int = 0) -> None:
    """Record replies that the current request does not return, so that their usage is counted.

    Without an `extra_usage`, this and the other `record_…` functions do nothing.

    Args:
        replies: The replies, with their usage.
        uncalled: Number of returned replies that no model wrote.
    """
    if (extra := extra_usage.get()) is not None:
        extra.replies += replies
        extra.uncalled += uncalled


def record_replaced(name: str, reply: AIMessage | None) -> None:
    """Record, for an event, that the middleware `name` replaced a reply.

    `reply` is the model's own reply; None if no model was asked.
    """
    if (extra := extra_usage.get()) is not None:
        extra.replaced.append((name, reply))


def record_warning(warning: str) -> None:
    """Record a `warning` event about the model's endpoint for the history; `warning` is a full sentence."""
    record_event("warning", message=warning)


def record_event(type_: str, **fields: Any) -> None:
    """Record an event of the current request for the history: its type and the fields of that type."""
    if (extra := extra_usage.get()) is not None:
        extra.events.append((type_, fields))


def record_cut_off(
    model: Any,
    request: Sequence[BaseMessage],
    options: Mapping[str, Any],
    text: str = "",
    reported: UsageMetadata | None = None,
) -> AIMessage | None:
    """Record in the `extra_usage` of the current request that the request was cut off, and return its partial reply.

    The reply has the text so far, and its usage. None, without a record, if there is no `extra_usage`.

    Args:
        model: The model, whose name the reply gets.
        request: The messages of the request.
        options: Keyword arguments of the request; its `tools` count as input.
        text: The text received so far.
        reported: The usage reported so far; None if none was. Missing figures are estimated.
    """
    if (extra := extra_usage.get()) is None:
        return None
    extra.cut_off = cut_off_reply(request, text, reported, model=name_of_model(model), tools=options.get("tools"))
    extra.replies.append(extra.cut_off)
    return extra.cut_off


def name_of_model(model: Any) -> str:
    """Return a model's configured name; empty if it has none."""
    for attribute in _class_of_model(type(model)).names:
        if name := getattr(model, attribute, None):
            return name if isinstance(name, str) else ""
    return ""


class _ModelClass(NamedTuple):
    """The attributes of a class of models that each request reads."""

    names: tuple[str, ...]
    """Attributes that may hold the configured name; the first one that is set does."""
    sends_requests: bool
    """Whether the model only forwards requests to another one."""


def _read_class(kind: type) -> _ModelClass:
    """Return which attributes of a model's class may hold the configured name, and whether the class has
    `sends_requests`.

    A class with `sends_requests` only forwards requests to other models, which are measured there.
    """
    names: tuple[str, ...] = ("model_name", "model")
    if issubclass(kind, BaseModel) and kind.model_config.get("extra") != "allow":
        names = tuple(name for name in names if name in kind.model_fields or hasattr(kind, name))
    return _ModelClass(names, bool(getattr(kind, "sends_requests", False)))


# Cached, because pydantic takes long to find that an attribute is absent.
_class_of_model: Callable[[type], _ModelClass] = lru_cache(maxsize=256)(_read_class)


def with_usage(
    reply: AIMessage,
    request: Sequence[BaseMessage],
    settings: LoopConfig,
    tools: Sequence[dict[str, Any]] | None = None,
) -> AIMessage:
    """Return a reply with complete usage: missing counts become 0, and missing usage is estimated if a budget needs it.

    Usage of zeros counts as missing. The same object if nothing changes. An estimate is marked in `response_metadata`.

    Args:
        request: The messages of the request.
        settings: Usage is estimated only with `max_tokens_total` or `max_cost`.
        tools: The offered tools, in OpenAI's function format; None if there are none.
    """
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
    """Return the message for a reply that was cut off, with its usage as reported, completed by estimates; it is always
    marked as estimated.

    Args:
        request: The messages of the request.
        text: The text received so far.
        reported: The usage reported so far, which covers at most the beginning; None if none was.
        model: The model's name, by which the cost is found.
        tools: The offered tools, in OpenAI's function format; None if there are none.
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
    """Estimate the tokens of a request, its `tools` included, and of the reply to it, at about four characters a
    token."""
    asked = estimated_tokens(request, tools=list(tools) if tools else None)
    answered = estimated_tokens([reply])
    return UsageMetadata(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered)


BUDGET_LEFT = "__graph_agent_budget_left"
"""Key in a delegated run's `configurable`: the remaining budget of the delegating run, as `RemainingBudget.as_json`."""
STEPS_TO_FINALIZE = 2
"""Supersteps that must remain before LangGraph's recursion limit so that `finalize` can run."""
STEPS_FOR_A_WAVE = STEPS_TO_FINALIZE + 2
"""Supersteps that must remain so that a parallel batch of calls, `plan` and `finalize` can run."""

LOGGED = {
    "step_limit": "Max agentic iterations reached without final response",
    "recursion_limit": "LangGraph's recursion limit of %g supersteps reached without final response",
    "turn_limit": "The session's model turn limit of %g reached without final response",
    "token_limit": "The token budget of %g reached without final response",
    "cost_limit": "The cost budget of %g reached without final response",
    "deadline": "The deadline of %g s reached without final response",
}
"""Limit that ends planning → log message; `%g` is the limit's value."""

LimitMet = tuple[StopReason, float]
"""The reason for which planning ends, and the value of the limit that was reached."""


@dataclass(frozen=True, slots=True)
class BudgetUsage:
    """Usage of an input so far, in the units of its budgets."""

    seconds: float = 0.0
    """Working time, without waits for a reviewer."""
    tokens: int = 0
    cost: float = 0.0
    """In the currency of `prices`."""
    last_tokens: int = 0
    """Tokens of the newest model call, which estimate the next one; 0 before the first call."""
    last_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class RemainingBudget:
    """The budget that an input may still use; None in a field means no limit."""

    deadline_s: float | None = None
    tokens: int | None = None
    cost: float | None = None

    def shared_by(self, shares: int) -> RemainingBudget:
        """Return the budget of each of `shares` parts that run in parallel: tokens and cost are divided, time is
        not."""
        return RemainingBudget(
            self.deadline_s,
            None if self.tokens is None else self.tokens // shares,
            None if self.cost is None else self.cost / shares,
        )

    def as_json(self) -> dict[str, float | int | None]:
        """Return the fields as a dict of JSON values."""
        return {"deadline_s": self.deadline_s, "tokens": self.tokens, "cost": self.cost}


def has_budget(settings: LoopConfig) -> bool:
    """Whether the settings limit time, tokens or cost."""
    return (settings.deadline_s, settings.max_tokens_total, settings.max_cost) != (None, None, None)


def budget_met(spent: BudgetUsage, settings: LoopConfig) -> tuple[StopReason, float] | None:
    """Return which budget is too small for another plan and the answer, and its value; None if all suffice.

    Tested are `deadline`, `token_limit` and `cost_limit`, in this order. The next model call is assumed to cost as much
    as the newest one, and a reserve is kept for the answer. `spent` is what the input has used, `settings` have the
    budgets.
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
    """Return the seconds of a deadline that planning and calls may use; the rest is reserved for the answer."""
    return deadline_s * (1 - settings.answer_reserve)


def _reserve(limit: float, last: float, settings: LoopConfig) -> float:
    """Return the part of a budget that is kept for the answer.

    It is a share of `limit`, or the use of the last model call if that is more.
    """
    # The answer's request contains the last one, so it uses at least as much.
    return max(limit * settings.answer_reserve, last)


def exhausted(spent: BudgetUsage, settings: LoopConfig) -> tuple[StopReason, float] | None:
    """Return which budget is used up completely, so that even the answer has none, and its value; None if none is.

    Tested are `deadline`, `token_limit` and `cost_limit`, in this order. `spent` is what the input has used, `settings`
    have the budgets.
    """
    if settings.deadline_s is not None and spent.seconds >= settings.deadline_s:
        return "deadline", settings.deadline_s
    if settings.max_tokens_total is not None and spent.tokens >= settings.max_tokens_total:
        return "token_limit", settings.max_tokens_total
    if settings.max_cost is not None and spent.cost >= settings.max_cost:
        return "cost_limit", settings.max_cost
    return None


def budget_for_delegates(spent: BudgetUsage, settings: LoopConfig) -> RemainingBudget:
    """Return the budget that delegates may use: what remains after the reserve for the answer, at least 0 in each
    field."""
    deadline, tokens, cost = settings.deadline_s, settings.max_tokens_total, settings.max_cost
    return RemainingBudget(
        None if deadline is None else max(0.0, work_s(deadline, settings) - spent.seconds),
        None if tokens is None else max(0, int(tokens - spent.tokens - _reserve(tokens, spent.last_tokens, settings))),
        None if cost is None else max(0.0, cost - spent.cost - _reserve(cost, spent.last_cost, settings)),
    )


def tighten_limits(settings: LoopConfig, left: Mapping[str, Any] | None) -> LoopConfig:
    """Return a delegate's settings with budgets that are at most what the delegating run has left; one that is used up
    becomes the smallest value that the setting accepts.

    Args:
        settings: The delegate's own settings.
        left: The result of `RemainingBudget.as_json`; None or empty leaves the settings unchanged.
    """
    values: dict[str, Any] = {}
    for name, key, least in _TIGHTENED:
        given, own = (left or {}).get(key), getattr(settings, name)
        if isinstance(given, int | float) and (own is None or given < own):
            # A budget that is used up is 0, which the field does not accept.
            values[name] = max(given, least)
    return settings.with_values(values)


_TIGHTENED = (("deadline_s", "deadline_s", 1e-3), ("max_tokens_total", "tokens", 1), ("max_cost", "cost", 1e-9))
"""Field of `LoopConfig`, key of `RemainingBudget.as_json`, and the smallest value that the field accepts, of each
budget."""


def cost_of(reply: AIMessage, prices: Mapping[str, Price]) -> float:
    """Return the cost of one model call, in the currency of `prices`; 0 without prices or usage.

    The price is that of the model named in the reply. If it is not in the table, the longest name there that is a
    prefix of it applies, such as `gpt-4o-mini` for `gpt-4o-mini-2024-07-18`; otherwise the highest price, so that no
    limit is exceeded unnoticed. Input tokens from the cache have the price `cached_input`, if it is set; calls that the
    provider ran are added if the price has `provider_calls`.
    """
    used = reply.usage_metadata
    if not prices or not used:
        return 0.0
    price = price_of(
        str(reply.response_metadata.get("model_name") or reply.response_metadata.get("model") or ""), prices
    )
    cached = used.get("input_token_details", {}).get("cache_read", 0) if price.cached_input is not None else 0
    # Cached tokens are a part of the input tokens.
    fresh = used["input_tokens"] - cached
    cost = (fresh * price.input + cached * (price.cached_input or 0.0) + used["output_tokens"] * price.output) / 1e6
    return cost + _cost_of_calls(reply, price.provider_calls) if price.provider_calls else cost


PROVIDER_CALLS = "graph_agent_provider_calls"
"""Key in a reply's `response_metadata`: name of a tool that the provider ran → number of calls that it charges for."""


def _cost_of_calls(reply: AIMessage, prices: Mapping[str, float]) -> float:
    """Return the cost of the tool calls that the provider ran for a reply; a tool without a price costs nothing."""
    calls: Mapping[str, int] = reply.response_metadata.get(PROVIDER_CALLS) or {}
    return sum(number * prices.get(name, 0.0) for name, number in calls.items())


def price_of(model: str, prices: Mapping[str, Price]) -> Price:
    """Return the price of the longest name in a table that is a prefix of a model's name; the highest price if none is.

    Args:
        model: Name of the model; may be empty.
        prices: Model name → price; not empty.
    """
    prefixes = [name for name in prices if model.startswith(name)]
    if prefixes:
        return prices[max(prefixes, key=len)]
    return max(prices.values(), key=lambda price: price.input + price.output)


def usage_of(reply: AIMessage, prices: Mapping[str, Price] | None = None) -> Usage:
    """Return the usage of one model call, with 0 for counts that are not reported.

    The cost is included only if `prices` (model name → price) is given and not empty.
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
    """Raised when a limit forbids another plan, so that the input ends.

    `reason` and `limit` are the cause and its value.
    """

    def __init__(self, reason: StopReason, limit: float) -> None:
        super().__init__(f"{reason}: {limit}")
        self.reason: StopReason = reason
        self.limit = limit


def limit_met(step: int, turn: int, settings: LoopConfig) -> tuple[StopReason, int] | None:
    """Return the limit that forbids another plan, `step_limit` or else `turn_limit`, and its value; None if there is
    none.

    Args:
        step: Number of plans of this input so far.
        turn: Number of the session's model calls so far that `max_turns` counts.
        settings: The run's settings.
    """
    if step >= settings.max_steps:
        return "step_limit", settings.max_steps
    if settings.max_turns is not None and turn >= settings.max_turns:
        return "turn_limit", settings.max_turns
    return None
