"""What an agent goes through with each provider; `SITUATIONS` has all parts, by the column of the matrix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module

from tests.providers.lab import Lab
from tests.providers.row import Ability


@dataclass(frozen=True)
class Situation:
    """One part of a situation."""

    column: str
    """The column of the matrix."""
    name: str
    run: Callable[[Lab], Awaitable[None]]
    needs: Ability | None = None
    """What the provider must be able to do; without it, the part does not apply."""


SITUATIONS: list[Situation] = []
COLUMNS = (
    "hello",
    "calls",
    "unknown name",
    "failing tool",
    "media",
    "step limit",
    "finalize",
    "loop notice",
    "steering",
    "cancel",
    "approval",
    "delegate",
    "compaction",
    "text and waves",
    "structured",
    "fallback",
    "reopened",
    "overflow",
    "failures",
    "abort",
    "usage",
    "reasoning",
    "schemas",
    "names",
)


def situation(
    column: str, *, needs: Ability | None = None
) -> Callable[[Callable[[Lab], Awaitable[None]]], Callable[[Lab], Awaitable[None]]]:
    """Register a coroutine function as a part of a situation."""
    assert column in COLUMNS

    def register(run: Callable[[Lab], Awaitable[None]]) -> Callable[[Lab], Awaitable[None]]:
        SITUATIONS.append(Situation(column, run.__name__, run, needs))
        return run

    return register


def load() -> list[Situation]:
    """Import the modules of situations, and return all parts in the order of the columns."""
    for module in ("calls", "control", "failures", "limits", "media", "memory", "modes", "replies", "tools"):
        import_module(f"{__name__}.{module}")
    return sorted(SITUATIONS, key=lambda part: COLUMNS.index(part.column))
