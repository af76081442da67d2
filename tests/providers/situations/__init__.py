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
    adapts: Ability | None = None
    """What the provider may be unable to do; the part then expects what the user gets in its place."""

    @property
    def abilities(self) -> tuple[Ability, ...]:
        """The abilities whose lack changes the part."""
        return tuple(ability for ability in (self.needs, self.adapts) if ability is not None)


SITUATIONS: list[Situation] = []
DESCRIPTIONS = {
    "hello": "a greeting, streamed and whole",
    "calls": "one and two calls, streamed and whole, with text before them",
    "unknown name": "the model calls a tool that does not exist, by an invented name",
    "failing tool": "a tool raises an error",
    "media": "an image and a document, in the user's message and in a tool's result",
    "step limit": "the model is asked for its answer at the limit; it answers, or calls again",
    "finalize": "each way to the answer: auto, compose, direct",
    "loop notice": "the model repeats a call, and gets a notice",
    "steering": "the user writes while calls run",
    "cancel": "the user stops a call or a reply, and asks the next question",
    "approval": "a person edits a call before it runs",
    "delegate": "another agent does a part of the work",
    "compaction": "a long conversation is summarized",
    "text and waves": "calls written as text, and structured plans, also at limits",
    "structured": "the answer fits a schema, also after a repair",
    "fallback": "another provider goes on, and hands the conversation back",
    "reopened": "a stored session is continued by a new agent",
    "overflow": "the provider refuses a request as too long; it is shortened",
    "failures": "rate limit, server error, exhausted quota, wrong key, broken streams",
    "abort": "a stopped run closes its connection",
    "usage": "tokens and cost, streamed and whole",
    "reasoning": "the model reasons, and its reasoning goes back where it must",
    "schemas": "odd schemas of published MCP servers",
    "names": "tools with names of each kind, also withdrawn ones",
}
"""Columns of the matrix, and what happens in them."""
COLUMNS = tuple(DESCRIPTIONS)


def situation(
    column: str, *, needs: Ability | None = None, adapts: Ability | None = None
) -> Callable[[Callable[[Lab], Awaitable[None]]], Callable[[Lab], Awaitable[None]]]:
    """Register a coroutine function as a part of a situation."""
    assert column in COLUMNS

    def register(run: Callable[[Lab], Awaitable[None]]) -> Callable[[Lab], Awaitable[None]]:
        SITUATIONS.append(Situation(column, run.__name__, run, needs, adapts))
        return run

    return register


def load() -> list[Situation]:
    """Import the modules of situations, and return all parts in the order of the columns."""
    for module in ("calls", "control", "failures", "limits", "media", "memory", "modes", "replies", "tools"):
        import_module(f"{__name__}.{module}")
    return sorted(SITUATIONS, key=lambda part: COLUMNS.index(part.column))
