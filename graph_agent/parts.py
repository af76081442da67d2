"""What one agent is made of, ready to run: the nodes are given this and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from langgraph.runtime import Runtime

from graph_agent.config import LoopConfig
from graph_agent.models.client import ModelClient
from graph_agent.prompts import Prompts
from graph_agent.schema import ResponseSchema
from graph_agent.toolbox import Toolbox


class Slots:
    """Bounds how many calls of one wave are in flight."""

    def __init__(self) -> None:
        self._waves: dict[str, tuple[anyio.CapacityLimiter, list[object]]] = {}

    @asynccontextmanager
    async def one(self, runtime: Runtime[Any], limit: int) -> AsyncIterator[None]:
        """Wait for a slot.

        Args:
            runtime: The calling task's runtime; the tasks of one wave share its checkpoint id.
            limit: Calls in flight at most; the first caller's counts.
        """
        wave = runtime.execution_info.checkpoint_id if runtime.execution_info else ""
        limiter, users = self._waves.setdefault(wave, (anyio.CapacityLimiter(limit), []))
        user = object()
        users.append(user)
        try:
            async with limiter:
                yield
        finally:
            users.remove(user)
            if not users:
                self._waves.pop(wave, None)


@dataclass(frozen=True)
class AgentParts:
    """One agent's parts, made once and shared by all its runs."""

    name: str
    client: ModelClient
    toolbox: Toolbox
    prompts: Prompts
    config: LoopConfig
    tool_calling: Literal["native", "text"]
    """The mode chosen when the agent was built."""
    system_prompt: Callable[[], str]
    """Gives the text of the system prompt; empty for none. Asked at each request, as it may name the day."""
    response: ResponseSchema | None = None
    warnings: tuple[str, ...] = ()
    """What was not as it should be when the agent was built, e.g. a server that is down; told at each input."""
    slots: Slots = field(default_factory=Slots)

    def in_text(self, settings: LoopConfig) -> bool:
        """Whether calls are asked for in text under a run's settings."""
        mode = self.tool_calling if settings.tool_calling == "auto" else settings.tool_calling
        return mode == "text"
