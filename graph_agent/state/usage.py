"""Arithmetic of token usage."""

from __future__ import annotations

from graph_agent.types import NO_USAGE, Usage


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
