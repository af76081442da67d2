"""Writes to own state fields by code that a node calls, such as middleware around a model request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_collected: ContextVar[list[tuple[str, Any]] | None] = ContextVar("graph_agent_own_writes", default=None)


@contextmanager
def collect_own_writes(into: list[tuple[str, Any]]) -> Iterator[None]:
    """Collect the writes of the code inside the context in a list, which the node adds to its update."""
    reset = _collected.set(into)
    try:
        yield
    finally:
        _collected.reset(reset)


def write_own_field(name: str, value: Any) -> None:
    """Write a field; ignored outside `collect_own_writes`."""
    if (collected := _collected.get()) is not None:
        collected.append((name, value))
