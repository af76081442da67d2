"""Effects of calls after their wave: further messages, and handoffs to a node of the parent graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.types import Command

from graph_agent.events.calls import Handoff, answers_of_wave
from graph_agent.planning.update import PlanUpdate
from graph_agent.state.channels import status_event
from graph_agent.state.messages import order_results
from graph_agent.state.schema import PlanState
from graph_agent.tools.commands import parent_command
from graph_agent.types import STATUS_OF, SessionStatus

_HANDED_OFF = "Not run: another call handed the conversation off to the parent graph."


def apply_after_wave(update: PlanUpdate) -> None:
    """Add the messages that calls of the finished wave left for the history, and end at their handoffs, if any."""
    remote = update.state.get("remote")
    if not remote or not (after := remote.get("after")):
        return
    change = update.changes.get("remote", {"contexts": {}, "open": {}})
    update.changes["remote"] = {**change, "after": None}
    order = [entry["id"] for entry in answers_of_wave(update.state["events"])]
    effects = [after[id_] for id_ in order if id_ in after]
    for message in [message for each in effects for message in each["messages"]]:
        update.add_message(message)
        update.history = [*update.history, message]
    if handoffs := [each["handoff"] for each in effects if each["handoff"] is not None]:
        update.skip([(call, _HANDED_OFF) for call in update.loop["waiting"]])
        update.loop["waiting"] = []
        update.conclude({"stop_reason": "completed", "handoffs": handoffs})


def handoff_command(state: PlanState) -> Command[Any] | None:
    """Return what `finalize` returns for a handoff; None without one.

    The first command closes the input without an answer and runs `finalize` again; the second leaves for the parent
    graph. LangGraph drops the writes of a task that leaves, so the closing update needs a superstep of its own.

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
    """Return a handoff whose conversation, if it gives one on, has the results of all calls of the wave."""
    update: list[tuple[str, Any]] = []
    for name, value in handoff["update"]:
        if name == "messages" and isinstance(value, list) and any(isinstance(each, AIMessage) for each in value):
            answered = {each.tool_call_id for each in value if isinstance(each, ToolMessage)}
            results = [each for each in history if isinstance(each, ToolMessage) and each.tool_call_id not in answered]
            update.append((name, order_results([*value, *results])))
        else:
            update.append((name, value))
    return {"goto": handoff["goto"], "update": update}
