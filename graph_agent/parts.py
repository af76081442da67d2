"""What one agent is made of, ready to run: the nodes are given this and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakValueDictionary

from langgraph.runtime import Runtime

from graph_agent.config import LoopConfig
from graph_agent.models.client import ModelClient
from graph_agent.prompts import Prompts
from graph_agent.schema import ResponseSchema
from graph_agent.toolbox import Toolbox


class Slots:
    """Bounds how many calls of one wave are in flight."""

    def __init__(self) -> None:
        # The tasks of a wave meet here by its checkpoint; a wave that nobody is in any more is forgotten.
        self._waves: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of_wave(self, runtime: Runtime[Any], limit: int) -> asyncio.Semaphore:
        """What a call of one wave holds while it runs.

        Args:
            runtime: The calling task's runtime; the tasks of one wave share its checkpoint id.
            limit: Calls in flight at most; the first caller's counts.
        """
        wave = runtime.execution_info.checkpoint_id if runtime.execution_info else ""
        return self._waves.setdefault(wave, asyncio.Semaphore(limit))


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
    _instructions: dict[tuple[bool, bool], str] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        # Both modes in both forms: a run may override the one, and a provider the other.
        for direct in (False, True):
            planner = self.prompts.render("planner", direct=direct)
            listed = self.prompts.render("text_tools", tools=[schema["function"] for schema in self.toolbox.schemas])
            self._instructions[direct, False] = planner
            self._instructions[direct, True] = f"{planner}\n\n{listed}"

    def instructions(self, *, direct: bool, text: bool) -> str:
        """How the agent is told to work, beside its own system prompt.

        Args:
            direct: The plan's own text is the answer.
            text: The tools are listed, and calls are asked for in text.
        """
        return self._instructions[direct, text]

    def in_text(self, settings: LoopConfig) -> bool:
        """Whether calls are asked for in text under a run's settings."""
        mode = self.tool_calling if settings.tool_calling == "auto" else settings.tool_calling
        return mode == "text"
