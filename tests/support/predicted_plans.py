"""An agent whose slow call runs until a test, or a call of a predicted plan, lets it end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from graph_agent import GraphAgent, LoopConfig, ScriptedChatModel, create_graph_agent


def plan(*calls: tuple[str, str, dict[str, Any]], status: str = "continue", **fields: Any) -> str:
    made = [{"id": id_, "tool": name, "args": args} for id_, name, args in calls]
    return json.dumps({"status": status, "tools": made, **fields})


FIRST = plan(("quick", "look", {"text": "a"}), ("slow", "wait_for", {"text": "b"}))
# One call after the other, so that there is nothing to predict while they run.
NEXT = plan(("more", "look", {"text": "c"}), ("write", "save", {"text": "d ${more}"}))
DONE = plan(status="done", answer="Done.")


class Bench:
    """Tools of which one ends once `may_end` is set, which `look` of the texts in `releases` does."""

    def __init__(self, releases: str = "c") -> None:
        self.may_end = asyncio.Event()
        self.order: list[str] = []
        self._releases = releases

    def tools(self) -> list[BaseTool]:
        @tool
        async def look(text: str) -> str:
            """Look up."""
            self.order.append(f"look {text}")
            if text in self._releases:
                self.may_end.set()
            return f"found {text}"

        @tool
        async def wait_for(text: str) -> str:
            """Wait for a result."""
            await self.may_end.wait()
            self.order.append(f"wait_for {text}")
            return f"waited for {text}"

        @tool
        async def save(text: str) -> str:
            """Save."""
            self.order.append(f"save {text}")
            return "saved"

        look.metadata = wait_for.metadata = {"effect": "read"}
        return [look, wait_for, save]


def agent_of(
    model: ScriptedChatModel, bench: Bench, saver: InMemorySaver | None = None, **config: Any
) -> GraphAgent[Any, Any]:
    settings = LoopConfig(**{"predict": True, "tool_calling": "wave", "tool_timeout_s": 60, **config})
    return create_graph_agent(model, bench.tools(), config=settings, checkpointer=saver or InMemorySaver())


class Releasing(ScriptedChatModel):
    """Sets an event after its second reply, and keeps the schema of each request."""

    _may_end: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    def _reply(self, *given: Any) -> AIMessage:
        reply = super()._reply(*given)
        if len(self.requests) == 2:
            asyncio.get_running_loop().call_later(0.2, self._may_end.set)
        return reply
