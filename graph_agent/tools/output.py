"""What a tool call came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import Command

from graph_agent._internal.text import as_text, clean, plain, text_of
from graph_agent.events.types import ResultStatus
from graph_agent.events.values import as_json, decode, structured_content
from graph_agent.tools.returned import Returned
from graph_agent.types import Call


@dataclass(frozen=True, slots=True)
class Output:
    """What a call came to, before it is cut to what the model sees."""

    content: str | list[Any]
    """Text, or LangChain content blocks."""
    status: ResultStatus = "success"
    artifact: Any = None
    """Plain JSON that the tool returned beside its content."""
    stored: Mapping[str, Any] = field(default_factory=dict)
    """How the call's event stores the result's value; see `graph_agent.events.values`."""
    raised: BaseException | None = None
    """What the tool raised, where its own failure is what `content` tells of."""


def read_output(returned: Any, call: Call, given: Returned | None = None) -> Output:
    """Read what a tool returned: text, a message for its call, or a `Command` or list that holds just that message.

    Anything more would stand between the results of parallel calls, an order that providers refuse, or would change
    the state behind the loop's back.

    Args:
        returned: What LangChain made of it.
        call: The call.
        given: What the tool's own code returned; None where that is not recorded.
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
    artifact = None if found.artifact is None else plain(found.artifact)
    content, text = _content(found.content), _json_text(given, found)
    stored = structured_content(content if text is None else text, artifact)
    if text is None:
        return Output(content, "error" if found.status == "error" else "success", artifact, stored)
    return Output(text, "success", artifact, stored or {"encoding": "json"})


def _json_text(given: Returned | None, found: ToolMessage) -> str | None:
    """The JSON of what a tool returned; None for text, content blocks, and messages that the tool made itself."""
    if given is None or not given.is_known or isinstance(_content(found.content), list):
        return None
    items = given.value if isinstance(given.value, list) else [given.value]
    if isinstance(given.value, str) or any(isinstance(item, ToolMessage | Command) for item in items):
        return None
    return as_json(given.value)


def with_value_of(outputs: Sequence[Output], output: Output) -> Output:
    """Return an output with the value of the call that it comes from, which a message does not hold.

    Where middleware has changed the content and not the artifact, the value comes from the content alone: what was
    taken out of the text must not come back by the artifact.

    Args:
        outputs: The outputs of each time the call ran, oldest first.
        output: The output that middleware has made of them.
    """
    for ran in reversed(outputs):
        if (ran.content, ran.artifact) == (output.content, output.artifact):
            return replace(output, stored=ran.stored)
    if not any(ran.stored and ran.artifact == output.artifact for ran in outputs):
        return output
    is_json = decode(text_of(output.content)) is not None
    return replace(output, stored={"encoding": "json"} if is_json else {})


def _content(content: str | list[Any]) -> str | list[Any]:
    """A message's content, cleaned. A list of bare texts is a tool's own list, which blocks run together would hide."""
    if isinstance(content, list) and any(isinstance(block, dict) for block in content):
        blocks: list[Any] = plain(content)
        return blocks
    return as_text(content)
