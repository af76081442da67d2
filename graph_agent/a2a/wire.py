"""What our agents say to each other beside the protocol's own fields, in metadata under one key."""

from __future__ import annotations

import math
from typing import Any

from graph_agent.budget import BUDGET_LEFT
from graph_agent.delegation import DEPTH_LEFT, Delegation
from graph_agent.types import NO_USAGE, Usage

EXTENSION = "urn:graph-agent:delegation:1"
"""Key of our metadata, and the extension's URI in our agent cards: what is left of a delegating run goes along."""


def metadata_of(delegation: Delegation) -> dict[str, Any]:
    """What a message tells of the delegating run: how deep others may delegate, and what it has left."""
    left = {"depth": delegation.depth_left, **delegation.left.as_json()}
    return {EXTENSION: {name: value for name, value in left.items() if value is not None}}


def read_left(metadata: Any) -> dict[str, Any]:
    """What a message's metadata tells of the delegating run, as the `configurable` of the run it begins.

    What is no number, or below zero, is not there.
    """
    told = _ours(metadata)
    depth, left = _number(told.get("depth")), {name: _number(told.get(name)) for name in ("deadline_s", "cost")}
    tokens = _number(told.get("tokens"))
    configurable: dict[str, Any] = {} if depth is None else {DEPTH_LEFT: int(depth)}
    budget = {**left, "tokens": None if tokens is None else int(tokens)}
    if any(value is not None for value in budget.values()):
        configurable[BUDGET_LEFT] = budget
    return configurable


def read_usage(metadata: Any) -> Usage:
    """What a finished task's metadata tells of the tokens it used; zeros where it tells nothing."""
    told = _ours(metadata).get("usage")
    counts = {name: _number(told.get(name)) for name in (*NO_USAGE, "cost")} if isinstance(told, dict) else {}
    usage: Usage = {
        "input_tokens": int(counts.get("input_tokens") or 0),
        "output_tokens": int(counts.get("output_tokens") or 0),
        "total_tokens": int(counts.get("total_tokens") or 0),
        "model_calls": int(counts.get("model_calls") or 0),
    }
    if cost := counts.get("cost"):
        usage["cost"] = cost
    return usage


def whole(value: Any) -> Any:
    """JSON as it was before the protocol made every number a float: whole ones are integers again."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
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
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)
