"""The delegates of one agent: their schemas for the model, and cancellation of their waiting tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from graph_agent.delegation import AskingDelegate, Delegate
from graph_agent.prompts import Prompts
from graph_agent.state.remote import RemoteTask
from graph_agent.types import delegation_name


async def withdraw(delegates: Mapping[str, Delegate], tasks: Mapping[str, RemoteTask]) -> None:
    """Cancel tasks that wait for a person, as no answer will come.

    Args:
        delegates: Call name → the delegate.
        tasks: Call id → the task.
    """
    withdrawn = []
    for task in tasks.values():
        delegate: Any = delegates.get(delegation_name(task["delegate"]))
        if isinstance(delegate, AskingDelegate):
            withdrawn.append(delegate.withdraw(task))
    await asyncio.gather(*withdrawn)


def delegate_schema(call_name: str, delegate: Delegate, prompts: Prompts) -> dict[str, Any]:
    """Return a delegate in OpenAI's function format."""
    return {
        "type": "function",
        "function": {
            "name": call_name,
            "description": prompts.render("delegate", name=delegate.name, description=delegate.description),
            "parameters": {
                "type": "object",
                "properties": {"task": {"type": "string", "description": "The task, complete in itself."}},
                "required": ["task"],
            },
        },
    }
