"""Metadata that our agents exchange in A2A messages and tasks: remaining budget, usage and stop reason."""

from __future__ import annotations

import math
from typing import Any

from graph_agent.budgets import BUDGET_LEFT, RemainingBudget
from graph_agent.delegation import DEPTH_LEFT, Delegation
from graph_agent.types import NO_USAGE, Usage

EXTENSION = "urn:graph-agent:delegation:1"
"""Key of our metadata, and URI of the extension in our agent cards."""

_MAX_EXACT = 2**53
"""Largest magnitude up to which a float represents every integer exactly."""

_USAGE = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
    "model_calls": "modelCalls",
}
"""Keys of `Usage`, mapped to the protocol's names in camel case."""


def delegation_metadata(delegation: Delegation) -> dict[str, Any]:
    """Metadata of a delegated message: remaining delegation depth and remaining budget of the delegating run."""
    budget = delegation.budget
    values = {
        "depth": delegation.depth_left,
        "deadlineS": budget.deadline_s,
        "tokens": budget.tokens,
        "cost": budget.cost,
    }
    return {EXTENSION: {name: value for name, value in values.items() if value is not None}}


def read_budget(metadata: Any) -> dict[str, Any]:
    """Parse the delegating run's depth and budget from message metadata, as `configurable` of the new run.

    Values that are not numbers, negative, or above 2⁵³ are dropped.
    """
    values = _extension_values(metadata)
    depth, tokens = _number(values.get("depth")), _number(values.get("tokens"))
    configurable: dict[str, Any] = {} if depth is None else {DEPTH_LEFT: int(depth)}
    budget = RemainingBudget(
        _number(values.get("deadlineS")), None if tokens is None else int(tokens), _number(values.get("cost"))
    )
    if budget != RemainingBudget():
        configurable[BUDGET_LEFT] = budget.as_json()
    return configurable


def outcome_metadata(stop_reason: str | None, usage: Usage) -> dict[str, Any]:
    """Metadata of a task: stop reason and usage of its run."""
    counts: dict[str, Any] = {there: usage[here] for here, there in _USAGE.items()}  # type: ignore[literal-required]  # the keys are its own
    cost = {"cost": usage["cost"]} if "cost" in usage else {}
    return {EXTENSION: {"stopReason": stop_reason, "usage": {**counts, **cost}}}


def read_usage(metadata: Any) -> Usage:
    """Parse the usage from a task's metadata; missing values are zero."""
    reported = _extension_values(metadata).get("usage")
    counts = {name: _number(value) for name, value in reported.items()} if isinstance(reported, dict) else {}
    usage: Usage = {**NO_USAGE}
    for here, there in _USAGE.items():
        usage[here] = int(counts.get(there) or 0)  # type: ignore[literal-required]  # the keys are its own
    if cost := counts.get("cost"):
        usage["cost"] = cost
    return usage


def restore_integers(value: Any) -> Any:
    """Convert integral floats in a JSON value back to integers; the protocol transmits every number as a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_EXACT:
        return int(value)
    if isinstance(value, list):
        return [restore_integers(item) for item in value]
    if isinstance(value, dict):
        return {key: restore_integers(item) for key, item in value.items()}
    return value


def _extension_values(metadata: Any) -> dict[str, Any]:
    values = metadata.get(EXTENSION) if isinstance(metadata, dict) else None
    return values if isinstance(values, dict) else {}


def _number(value: Any) -> float | None:
    """Return a valid count or amount as a float; None for non-numbers, negative numbers and numbers above 2⁵³."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 <= value <= _MAX_EXACT else None
