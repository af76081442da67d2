"""An agent whose writing calls need approval, and readers of its questions and history."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Interrupt

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.approvals.requests import DECISIONS, DecisionType
from graph_agent.marks import Marks, marked
from tests.support.agents import thread

ALL: list[DecisionType] = [*DECISIONS]


class Desk:
    """A session of an agent with the tools `write`, `erase` and `read`, which record their calls in `ran`.

    Args:
        script: The model's replies.
        approve: The agent's rules.
        config: Other fields of `LoopConfig`.
        marks: Marks of `write`.
        options: Other arguments of `create_graph_agent`.
    """

    def __init__(
        self,
        *script: str | AIMessage,
        approve: Any = ("write",),
        config: dict[str, Any] | None = None,
        marks: Marks | None = None,
        **options: Any,
    ) -> None:
        self.ran: list[str] = []
        self.model = ScriptedChatModel(list(script))

        @tool
        async def write(path: str, lines: int = 1) -> str:
            """Write a file."""
            return self._done(f"wrote {path}")

        @tool
        async def erase(path: str) -> str:
            """Erase a file."""
            return self._done(f"erased {path}")

        @tool
        async def read(path: str) -> str:
            """Read a file."""
            return self._done(f"read {path}")

        options.setdefault("checkpointer", InMemorySaver())
        tools = [marked(write, **(marks or {})), erase, read, *options.pop("tools", [])]
        self.graph = create_graph_agent(
            self.model, tools=tools, config=LoopConfig(approve=approve, **(config or {})), **options
        )

    @property
    def session(self) -> Session:
        """The session `s1`."""
        return Session(self.graph, "s1")

    def _done(self, text: str) -> str:
        self.ran.append(text)
        return text

    async def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The calls of the newest plan in the messages, as `(name, arguments)`."""
        messages = (await self.graph.aget_state(thread())).values["messages"]
        plan = next(message for message in reversed(messages) if isinstance(message, AIMessage) and message.tool_calls)
        return [(call["name"], call["args"]) for call in plan.tool_calls]

    async def answers(self) -> dict[str, str]:
        """The text that the model receives for each call."""
        messages = (await self.graph.aget_state(thread())).values["messages"]
        return {message.tool_call_id: message.text for message in messages if isinstance(message, ToolMessage)}

    async def decisions(self) -> list[dict[str, Any]]:
        """The decisions in the history, without the fields of every event."""
        events = [event for event in await self.session.events() if event["type"] == "approval_decision"]
        read_on = ("type", "ts", "seq", "session_id", "step", "waited_s")
        return [{key: value for key, value in event.items() if key not in read_on} for event in events]

    async def deciders(self) -> list[str]:
        """Who took each decision of the history."""
        return [decision["decided_by"] for decision in await self.decisions()]


def asked(interrupts: list[Interrupt]) -> list[list[tuple[str, dict[str, Any]]]]:
    """The calls of each open request, as `(name, arguments)`."""
    return [[(action["name"], action["args"]) for action in each.value["action_requests"]] for each in interrupts]
