"""Creates and repairs the ids of calls, and compares two calls."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from graph_agent.types import Call

MAX_DEPTH = 200
"""Maximum nesting of arguments, in levels: the interpreter allows 1,000 frames, and the caller uses some of them."""

# `json.dumps` with options creates an encoder on each call, which is most of a fingerprint's cost.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def new_call_id() -> str:
    """Return a unique call id: ``call_`` and 32 hexadecimal digits."""
    return f"call_{uuid.uuid4().hex}"


def with_unique_ids(calls: Iterable[Call]) -> list[Call]:
    """Return the calls with a new id for each one whose id is empty or taken by an earlier call."""
    taken: set[str] = set()
    unique: list[Call] = []
    for call in calls:
        id_ = call["id"] if call["id"] and call["id"] not in taken else new_call_id()
        unique.append(call if id_ == call["id"] else {**call, "id": id_})
        taken.add(id_)
    return unique


def canonical_arguments(arguments: Mapping[str, Any] | str) -> str:
    """Serialize arguments so that equal arguments give equal strings.

    Key order, ``1`` versus ``1.0`` and white space around a string do not matter; ``True`` and ``1`` differ. A string
    that is JSON is parsed first. The result is ASCII. Values nested deeper than ``MAX_DEPTH`` levels are omitted. Never
    raises: a value that is not JSON is compared by its ``str``.
    """
    value: Any = arguments
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = arguments
    return _ENCODER.encode(_canonical(value, 0))


def fingerprint(call: Call) -> str:
    """Return the name and a 16-digit hash of the canonical arguments; ids and ``needs`` are ignored."""
    digest = hashlib.sha256(canonical_arguments(call["arguments"]).encode()).hexdigest()
    return f"{call['name']}:{digest[:16]}"


def _canonical(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict | Mapping):
        return {str(key): _canonical(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item, depth + 1) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # The interpreter refuses to convert more than 4,300 decimal digits; hexadecimal has no limit.
        return value if value.bit_length() < 10_000 else hex(value)
    return str(value).strip()
