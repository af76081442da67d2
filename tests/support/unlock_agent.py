"""A scripted agent with a tool that lists the credentials it receives."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import tool
from langgraph.prebuilt import ToolRuntime

from graph_agent import AgentContext, ScriptedChatModel
from tests.support.agents import asks

UNLOCK = asks(("1", "unlock", {}))
"""A scripted reply that calls the tool."""


@tool
def unlock(runtime: ToolRuntime[AgentContext, Any]) -> str:
    """Name each credential, with the end of its value."""
    credentials = runtime.context.credentials
    return ", ".join(f"{name} ends in {secret.get_secret_value()[-4:]}" for name, secret in credentials.items())


def make() -> ScriptedChatModel:
    """The model, for an agent file."""
    return ScriptedChatModel([UNLOCK, "No more actions.", "Done."])
