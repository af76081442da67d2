"""What our agents say to each other beside the protocol's own fields, in metadata under one key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from graph_agent.delegation import Delegation
from graph_agent.types import NO_USAGE, Usage

EXTENSION = "urn:graph-agent:delegation:1"
"""Key of our metadata, and the extension's URI in our agent cards: what is left of a delegating run goes along."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the run that delegates; None for no limit."""

    depth: int | None = None
    """How many further delegations may nest."""
    deadline_s: float | None = None
    """Seconds."""
    tokens: int | None = None
    cost: float | None = None
    """In the price table's currency."""


def metadata_of(delegation: Delegation) -> dict[str, Any]:
    """What a message tells of the delegating run."""
    left = {
        "depth": delegation.depth_left,
        "deadline_s": delegation.deadline_s,
        "tokens": delegation.tokens_left,
        "cost": delegation.cost_left,
    }
    return {EXTENSION: {name: value for name, value in left.items() if value is not None}}


def read_left(metadata: Any) -> Left:
    """What a message's metadata tells of the delegating run; what is no number, or below zero, is not there."""
    told = _ours(metadata)
    depth, deadline_s = _number(told.get("depth")), _number(told.get("deadline_s"))
    tokens, cost = _number(told.get("tokens")), _number(told.get("cost"))
    return Left(None if depth is None else int(depth), deadline_s, None if tokens is None else int(tokens), cost)


def read_usage(metadata: Any) -> Usage:
    """What a finished task's metadata tells of the tokens it used; zeros where it tells nothing."""
    told = _ours(metadata).get("usage")
    counts = {name: _number(told.get(name)) if isinstance(told, dict) else None for name in NO_USAGE}
    return {
        "input_tokens": int(counts["input_tokens"] or 0),
        "output_tokens": int(counts["output_tokens"] or 0),
        "total_tokens": int(counts["total_tokens"] or 0),
        "model_calls": int(counts["model_calls"] or 0),
    }


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
