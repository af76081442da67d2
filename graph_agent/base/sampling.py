"""Gives the code of a tool call access to the agent's model: `current_sampler`."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

from langchain_core.messages import AIMessage, BaseMessage

from graph_agent.base.types import Usage


class Sampler(Protocol):
    """Sends requests of a running tool to the agent's model; their usage counts as usage of the run."""

    usage: Usage
    """Usage of this sampler's requests so far."""

    async def sample(
        self,
        request: Sequence[BaseMessage],
        *,
        max_tokens: int,
        temperature: float | None = None,
        stop: Sequence[str] | None = None,
    ) -> AIMessage:
        """Send one request without tools and return the reply.

        Args:
            request: The messages.
            max_tokens: Maximum tokens of the reply; the run's own limit also applies.
            temperature: None leaves it to the model.
            stop: Sequences at which the reply ends.

        Raises:
            LimitMetError: A budget of the input is used up.
            Exception: The provider's error.
        """
        ...


current_sampler: ContextVar[Sampler | None] = ContextVar("graph_agent_sampler", default=None)
"""The sampler of the running tool call; None outside a tool call of an agent."""
