"""What a tool call came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import Command

from graph_agent.events import ResultStatus
from graph_agent.text import as_text, clean, plain
from graph_agent.types import Call


@dataclass(frozen=True, slots=True)
class Output:
    """What a call came to, before it is cut to what the model sees."""

    content: str | list[Any]
    """Text, or LangChain content blocks."""
    status: ResultStatus = "success"
    artifact: Any = None
    """Plain JSON that the tool returned beside its content."""
    raised: BaseException | None = None
    """What the tool raised, where its own failure is what `content` tells of."""


def read_output(returned: Any, call: Call) -> Output:
    """Read what a tool returned: text, a message for its call, or a `Command` or list that holds just that message.

    Anything more would stand between the results of parallel calls, an order that providers refuse, or would change
    the state behind the loop's back.
    """
    if isinstance(returned, str):
        return Output(clean(returned))
    found: ToolMessage | None = None
    refused: list[str] = []
    for item in returned if isinstance(returned, list) else [returned]:
        messages: Any = [item]
        if isinstance(item, Command):
            update = item.update if isinstance(item.update, dict) else {}
            messages = update.get("messages", [])
            refused += ["goto"] * bool(item.goto or item.graph is not None)
            refused += [f"the state field {name!r}" for name in update if name != "messages"]
        for message in messages if isinstance(messages, list) else [messages]:
            if found is None and isinstance(message, ToolMessage) and message.tool_call_id == call["id"]:
                found = message
            else:
                refused.append(f"a {type(message).__name__}")
    if refused:
        return Output(f"The tool ran, but asked for what this agent does not let it: {', '.join(refused)}.", "error")
    if found is None:
        return Output(f"{call['name']} returned no message for this call; its result is not known.", "error")
    return Output(
        _content(found.content),
        "error" if found.status == "error" else "success",
        None if found.artifact is None else plain(found.artifact),
    )


def _content(content: str | list[Any]) -> str | list[Any]:
    """A message's content, cleaned. A list of bare texts is a tool's own list, which blocks run together would hide."""
    if isinstance(content, list) and any(isinstance(block, dict) for block in content):
        blocks: list[Any] = plain(content)
        return blocks
    return as_text(content)
