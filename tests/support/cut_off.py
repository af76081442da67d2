"""Replies that were cut off, and an agent with a tool that writes."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent

HALF = '{"path": "notes.txt", "text": "All that was writ'
WHOLE = '{"path": "notes.txt", "text": "All."}'
ENVELOPE = '{"tool_calls": [{"name": "write", "arguments": '
AGAIN = "Call it again."


class Disk:
    """Where the tool `write` writes."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

        @tool
        async def write(path: str, text: str = "") -> str:
            """Write a file."""
            self.files[path] = text
            return "written"

        self.write = write


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def ended(stub: Any, disk: Disk, *, streamed: bool, **config: Any) -> dict[str, Any]:
    """Run one input, and return its outcome."""
    async with stub.chat_model() as model:
        settings = LoopConfig(**{"finalize": "compose", "tool_calling": "native", "temperature": 0, **config})
        graph = create_graph_agent(model, tools=[disk.write], config=settings, checkpointer=InMemorySaver())
        session = Session(graph, "s1")
        if streamed:
            (result,) = [part.result async for part in session.stream("go") if part.type == "done"]
        else:
            result = await session.run("go")
        events = await session.events()
    return {
        "files": disk.files,
        "answer": result.answer,
        "status": result.status.value,
        "results": [(e["name"], e["status"], e["content"]) for e in events if e["type"] == "tool_result"],
        "requests": len(stub.requests),
        "events": events,
    }


def refused_call(cause: str, fix: str) -> str:
    return f"Not run: the reply that holds this call was cut off {cause}, so its arguments may be incomplete. {fix}"
