"""Leaves the agent for the parent graph, to which a tool's command has handed the conversation off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.types import Command

from graph_agent.base.history.call_events import Handoff
from graph_agent.base.types import STATUS_OF, SessionStatus
from graph_agent.core.extensions.invoke import parent_command
from graph_agent.core.state.channels import status_event
from graph_agent.core.state.messages import order_results
from graph_agent.core.state.schema import PlanState


def handoff_command(state: PlanState) -> Command[Any] | None:
    """Return the command of `finalize` if tools have handed the conversation to the parent graph; None otherwise.

    Two passes are needed, because LangGraph drops the other writes of a task that leaves the graph. In the first, the
    session is still `RUNNING`: the command completes the input without an answer and runs `finalize` again. In the
    second, it leaves for the parent graph.

    Args:
        state: The state of `finalize`.
    """
    outcome = state["loop"]["outcome"]
    if outcome is None or not (handoffs := outcome.get("handoffs")):
        return None
    if state["status"] != SessionStatus.RUNNING:
        return parent_command([_with_results(handoff, state["messages"]) for handoff in handoffs])
    status = STATUS_OF["completed"].value
    closed = status_event(state["status"], status, state["loop"]["step"])
    update = {"status": status, "stop_reason": "completed", "events": [closed]}
    return Command(update=update, goto="finalize")


def _with_results(handoff: Handoff, history: Sequence[AnyMessage]) -> Handoff:
    """Return a copy of a handoff; a conversation that it passes to the parent graph gets the results of all calls of
    the wave.

    A list of messages counts as a conversation if it contains a message of the model. Results that it has already are
    not added.

    Args:
        handoff: The tool's command to the parent graph.
        history: The agent's conversation, which has the results.
    """
    update: list[tuple[str, Any]] = []
    for name, value in handoff["update"]:
        if name == "messages" and isinstance(value, list) and any(isinstance(each, AIMessage) for each in value):
            answered = {each.tool_call_id for each in value if isinstance(each, ToolMessage)}
            results = [each for each in history if isinstance(each, ToolMessage) and each.tool_call_id not in answered]
            update.append((name, order_results([*value, *results])))
        else:
            update.append((name, value))
    return {"goto": handoff["goto"], "update": update}
