"""An agent stopped at a breakpoint after its plan, for tests that edit the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, marked, says, thread
from tests.support.fault_truth import orphans

DONE = ["No more actions.", "Done."]
TWO = asks(("1", "write", {"text": "one"}), ("2", "write", {"text": "two"}))
BREAKPOINTS: list[dict[str, Any]] = [{"interrupt_before": ["tools", "delegate"]}, {"interrupt_after": ["plan"]}]


class EditedAgent:
    """An agent whose tools log their arguments, and a session stopped at a breakpoint after its plan."""

    def __init__(
        self, script: Sequence[str], *, effect: str = "write", delegate: Any = None, tools: Any = (), **config: Any
    ) -> None:
        self.ran: list[str] = []
        self.model = ScriptedChatModel(list(script))
        inner = create_graph_agent(ScriptedChatModel(["Delegated."], cycle=True))
        self.graph: Any = create_graph_agent(
            self.model,
            tools=[*(marked(made, effect=effect) for made in self._tools()), *tools],
            delegates=[delegate or GraphDelegate("d", "Helps.", inner)],
            config=LoopConfig(**{"finalize": "compose", **config}),
            checkpointer=InMemorySaver(),
        )
        self.talk = Session(self.graph, "s1")

    def _tools(self) -> list[BaseTool]:
        @tool
        async def write(text: str) -> str:
            """Write a text."""
            self.ran.append(text)
            return f"wrote {text}"

        @tool
        async def erase(text: str) -> str:
            """Erase a text."""
            self.ran.append(f"-{text}")
            return f"erased {text}"

        return [write, erase]

    async def stand(self, **breakpoints: Any) -> AIMessage:
        """Run to the breakpoint; the plan's message."""
        await self.graph.ainvoke(says("go"), thread(), **(breakpoints or BREAKPOINTS[0]))
        return await self.plan()

    async def plan(self) -> AIMessage:
        messages = (await self.graph.aget_state(thread())).values["messages"]
        return next(message for message in reversed(messages) if isinstance(message, AIMessage))

    async def plan_of_the_history(self) -> AIMessage:
        """The last model message with calls."""
        messages = (await self.graph.aget_state(thread())).values["messages"]
        return next(m for m in reversed(messages) if isinstance(m, AIMessage) and m.tool_calls)

    async def edit(self, *messages: BaseMessage, as_node: str | None = None) -> None:
        await self.graph.aupdate_state(thread(), {"messages": list(messages)}, as_node=as_node)

    async def end(self, **options: Any) -> dict[str, Any]:
        """Resume; return the executed calls, the results, and the violations in requests and history."""
        await self.graph.ainvoke(None, thread(), **options)
        return await self.found()

    async def found(self) -> dict[str, Any]:
        values = (await self.graph.aget_state(thread())).values
        invalid = [fault for request in self.model.requests for fault in orphans(request.messages)]
        results = {m.tool_call_id: m.text for m in values["messages"] if isinstance(m, ToolMessage)}
        return {
            "ran": sorted(self.ran),
            "results": results,
            "faults": [*invalid, *orphans(values["messages"])],
            "status": values["status"],
        }

    async def events_of(self, *kinds: str) -> list[tuple[Any, ...]]:
        """The events of some types, each by its type, id and content."""
        events: list[Any] = await self.talk.events()
        return [
            (entry["type"], entry["id"], entry.get("arguments", entry.get("content", entry.get("task"))))
            for entry in events
            if entry["type"] in kinds
        ]


def ended(ran: list[str], results: dict[str, str]) -> dict[str, Any]:
    return {"ran": ran, "results": results, "faults": [], "status": "COMPLETED"}


def with_calls(message: AIMessage, *calls: tuple[str, str, dict[str, Any]]) -> AIMessage:
    """The same message with other calls."""
    listed: list[Any] = [{"id": id_, "name": name, "args": args} for id_, name, args in calls]
    return message.model_copy(update={"tool_calls": listed})


UNKNOWN_TOOL = "Unknown tool 'wirte'; known: delegate_to_d, erase, write. Did you mean 'write'?"
MISFIT = "The arguments do not fit the tool 'write': text: Field required. It takes: text."


def denied(id_: str, **fields: Any) -> ToolMessage:
    return ToolMessage("denied", tool_call_id=id_, **fields)
