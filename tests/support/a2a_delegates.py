"""Sessions that delegate to a remote agent, and the delegation events of their history."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import A2ADelegate, ScriptedChatModel, Session, create_graph_agent
from graph_agent.state.events import Event
from tests.support.agents import asks


def delegating_session(url: str, *tasks: str, wave: bool = False, **options: Any) -> tuple[Session, ScriptedChatModel]:
    """A session whose model delegates the tasks to `researcher`, one after another or in one wave."""
    calls = [(str(number), "delegate_to_researcher", {"task": task}) for number, task in enumerate(tasks, 1)]
    plans = [asks(*calls)] if wave else [asks(call) for call in calls]
    model = ScriptedChatModel([*plans, "No more actions.", "Done."])
    delegate = A2ADelegate("researcher", url, **options)
    return Session(create_graph_agent(model, delegates=[delegate], checkpointer=InMemorySaver()), "s1"), model


def delegation_summaries(events: list[Event]) -> list[tuple[Any, ...]]:
    """The delegation events of a history, as tuples."""
    listed: list[tuple[Any, ...]] = []
    for event in events:
        if event["type"] == "delegation_request":
            listed.append(("request", event["id"], event["task"]))
        elif event["type"] == "delegation_progress":
            listed.append(("progress", event["id"], event["content"]))
        elif event["type"] == "delegation_response":
            listed.append(("response", event["id"], event["status"], event["content"]))
    return listed
