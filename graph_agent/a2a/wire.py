"""What our agents say to each other beside the protocol's own fields, in metadata under one key."""

from __future__ import annotations

import math
from typing import Any

from graph_agent.budgets import BUDGET_LEFT, Left
from graph_agent.delegation import DEPTH_LEFT, Delegation
from graph_agent.types import NO_USAGE, Usage

EXTENSION = "urn:graph-agent:delegation:1"
"""Key of our metadata, and the extension's URI in our agent cards: what is left of a delegating run goes along."""

_MOST = 2**53
"""Up to here a float holds every whole number."""

_USAGE = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
    "model_calls": "modelCalls",
}
"""Names of usage here, and there: the protocol wants every name in camel case."""


def metadata_of(delegation: Delegation) -> dict[str, Any]:
    """What a message tells of the delegating run: how deep others may delegate, and what it has left."""
    left = delegation.left
    told = {
        "depth": delegation.depth_left,
        "deadlineS": left.deadline_s,
        "tokens": left.tokens,
        "cost": left.cost,
    }
    return {EXTENSION: {name: value for name, value in told.items() if value is not None}}


def read_left(metadata: Any) -> dict[str, Any]:
    """What a message's metadata tells of the delegating run, as the `configurable` of the run it begins.

    What is no number, below zero, or beyond 2⁵³ is not there.
    """
    told = _ours(metadata)
    depth, tokens = _number(told.get("depth")), _number(told.get("tokens"))
    configurable: dict[str, Any] = {} if depth is None else {DEPTH_LEFT: int(depth)}
    left = Left(_number(told.get("deadlineS")), None if tokens is None else int(tokens), _number(told.get("cost")))
    if left != Left():
        configurable[BUDGET_LEFT] = left.as_json()
    return configurable


def outcome_of(stop_reason: str | None, usage: Usage) -> dict[str, Any]:
    """What a finished task tells: why its run stopped, and what it used."""
    counts: dict[str, Any] = {there: usage[here] for here, there in _USAGE.items()}  # type: ignore[literal-required]  # the keys are its own
    cost = {"cost": usage["cost"]} if "cost" in usage else {}
    return {EXTENSION: {"stopReason": stop_reason, "usage": {**counts, **cost}}}


def read_usage(metadata: Any) -> Usage:
    """What a finished task's metadata tells of the tokens it used; zeros where it tells nothing."""
    told = _ours(metadata).get("usage")
    counts = {name: _number(value) for name, value in told.items()} if isinstance(told, dict) else {}
    usage: Usage = {**NO_USAGE}
    for here, there in _USAGE.items():
        usage[here] = int(counts.get(there) or 0)  # type: ignore[literal-required]  # the keys are its own
    if cost := counts.get("cost"):
        usage["cost"] = cost
    return usage


def whole(value: Any) -> Any:
    """JSON as it was before the protocol made every number a float: whole ones are integers again."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MOST:
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value


def _ours(metadata: Any) -> dict[str, Any]:
    told = metadata.get(EXTENSION) if isinstance(metadata, dict) else None
    return told if isinstance(told, dict) else {}


def _number(value: Any) -> float | None:
    """A count or amount; None for what is none, beyond what a float tells apart or a checkpoint holds included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 <= value <= _MOST else None
