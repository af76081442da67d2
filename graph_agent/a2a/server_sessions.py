"""Sessions behind tasks: opened with what the delegating run has left, and read for what they ask."""

from __future__ import annotations

from typing import Any

from langgraph.types import Interrupt

from graph_agent.a2a.wire import Left
from graph_agent.delegation import DEPTH_LEFT
from graph_agent.graph import CompiledAgentGraph
from graph_agent.session import Session

BUDGET_LEFT = "graph_agent_budget_left"
"""Key in a delegated run's `configurable`: what is left of the delegating run's budgets."""


def open_session(graph: CompiledAgentGraph, session_id: str, left: Left | None = None) -> Session:
    """The session of a conversation.

    Args:
        graph: The agent.
        session_id: The session.
        left: What is left of the run that delegates here; None for a run of its own.
    """
    left = left or Left()
    configurable: dict[str, Any] = {}
    if left.depth is not None:
        configurable[DEPTH_LEFT] = left.depth
    budget = {"deadline_s": left.deadline_s, "tokens": left.tokens, "cost": left.cost}
    if any(value is not None for value in budget.values()):
        configurable[BUDGET_LEFT] = budget
    session = Session(graph, session_id)
    session._config["configurable"].update(configurable)
    return session


async def pending_interrupts(graph: CompiledAgentGraph, session_id: str) -> tuple[Interrupt, ...]:
    """What a session waits for a person to answer; empty when it waits for nothing."""
    return (await graph.aget_state({"configurable": {"thread_id": session_id}})).interrupts
