"""Gives the code of a tool call access to the agent's model: `current_sampler`."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

from langchain_core.messages import AIMessage, BaseMessage

from graph_agent.base.types import Usage


class Sampler(Protocol):
    """The agent's model, for requests of one tool call; they count as usage of the run."""

    usage: Usage
    """Usage of the requests so far."""

    async def sample(
        self,
        request: Sequence[BaseMessage],
        *,
        max_tokens: int,
        temperature: float | None = None,
        stop: Sequence[str] | None = None,
    ) -> AIMessage:
        """Send one request, without tools; the run's own limit of tokens also applies.

        Raises `LimitMetError` if a budget of the input is used up, or the provider's error.
        """
        ...


current_sampler: ContextVar[Sampler | None] = ContextVar("graph_agent_sampler", default=None)
"""The sampler of the running tool call; None outside an agent's call."""
