"""Projects the events and the parts of a session to updates of ACP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from acp import start_tool_call, text_block, tool_content, update_plan, update_tool_call
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    ImageContentBlock,
    PlanEntry,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    ToolCallStatus,
    UserMessageChunk,
)

from graph_agent._internal.text import text_of, visible, visible_json
from graph_agent.session.history import shorten
from graph_agent.session.results import CallState, DelegateProgress, EventAdded, RunPart, Token
from graph_agent.state.call_events import call_name, call_of
from graph_agent.state.events import SUCCESSES, Event, StoredEvent

Update: TypeAlias = (
    UserMessageChunk | AgentMessageChunk | AgentThoughtChunk | ToolCallStart | ToolCallProgress | AgentPlanUpdate
)
_TITLE_LENGTH = 100


class Projection:
    """Makes the updates of one session, from its first event to its newest.

    Args:
        writes: Whether a call may write, by the name of its tool.
    """

    def __init__(self, writes: Callable[[str], bool]) -> None:
        self._writes = writes
        self._planned: Counter[str] = Counter()
        """Id of a call → number of calls with it: a model may reuse an id, and for clients it is one call."""
        self._wave: dict[str, PlanEntry] = {}
        """Name of a call → its entry, for the newest plan."""
        self._shown: set[str] = set()
        """Names of the calls that the client has."""
        self._open: set[str] = set()
        """Names of those that have not ended."""
        self._message_id = ""
        """Id of the newest message of the model."""
        self._sent = ""
        """Its text, as far as it is sent."""

    def part(self, part: RunPart) -> Iterator[Update]:
        """Yield the updates of a part of a run."""
        match part:
            case Token(text, message_id=id_):
                if id_ != self._message_id:
                    self._message_id, self._sent = id_, ""
                self._sent += text
                yield agent_message(text, id_)
            case CallState(id_, status=status) if status != "started":
                yield from self._end(self.name(id_), status)
            case DelegateProgress(id_, text=text):
                yield update_tool_call(self.name(id_), content=[tool_content(text_block(text))])
            case EventAdded(event):
                yield from self.event(event)
            case _:
                pass

    def event(self, event: Event) -> Iterator[Update]:
        """Yield the updates of an event, without the text that is sent already."""
        stored: StoredEvent = {**event}
        match event["type"]:
            case "user_message" | "steering":
                for block in blocks_of(event["content"]):
                    yield UserMessageChunk(
                        session_update="user_message_chunk", content=block, message_id=f"event-{event['seq']}"
                    )
            case "plan" if event["calls"]:
                if "planner" not in event:
                    yield from self._rest(event["reasoning"], f"event-{event['seq']}")
                elif event["reasoning"]:
                    yield thought(event["reasoning"])
                self._planned.update(call["id"] for call in event["calls"])
                self._wave = {
                    self.name(call["id"]): PlanEntry(content=call["name"], priority="medium", status="pending")
                    for call in event["calls"]
                }
                yield from self._plan()
            case "tool_call" | "delegation_request" if (call := call_of(stored)) is not None:
                yield from self.call(self.name(call["id"]), call["name"], call["arguments"], "in_progress")
            case "tool_result" | "delegation_response":
                yield from self._end(self.name(event["id"]), event["status"], stored)
            case "agent_response":
                yield from self._rest(text_of(event["content"]), f"event-{event['seq']}")
            case _:
                pass

    def name(self, id_: str) -> str:
        """Return the client's id of the newest call with an id."""
        return id_ if self._planned[id_] < 2 else f"{id_}#{self._planned[id_]}"

    def call(self, name: str, tool: str, arguments: Mapping[str, Any], status: ToolCallStatus) -> Iterator[Update]:
        """Yield the updates of a call that waits or starts.

        Args:
            name: The client's id of the call.
        """
        self._open.add(name)
        fields: dict[str, Any] = {"title": title_of(tool, arguments), "raw_input": {**arguments}, "status": status}
        if name in self._shown:
            yield update_tool_call(name, **fields)
        else:
            self._shown.add(name)
            yield start_tool_call(name, kind="other" if self._writes(tool) else "read", **fields)
        if name in self._wave:
            yield from self._mark(name, fields["title"], "in_progress" if status == "in_progress" else "pending")

    def _end(self, name: str, status: str, result: StoredEvent | None = None) -> Iterator[Update]:
        """Yield the updates of the end of a call; the event of its result may follow later."""
        if result is None and name not in self._open:
            return
        if result is not None and name not in self._shown:
            yield from self.call(name, str(call_name(result)), {}, "pending")  # it never started
        self._open.discard(name)
        output = None if result is None else [tool_content(block) for block in blocks_of(result["content"])]
        yield update_tool_call(name, status="completed" if status in SUCCESSES else "failed", content=output)
        if name in self._wave and self._wave[name].status != "completed":
            yield from self._mark(name, self._wave[name].content, "completed")

    def _mark(self, name: str, title: str, status: Any) -> Iterator[Update]:
        self._wave[name] = PlanEntry(content=title, priority="medium", status=status)
        yield from self._plan()

    def _plan(self) -> Iterator[Update]:
        # A plan of one call would only repeat the call.
        if len(self._wave) > 1:
            yield update_plan(self._wave.values())

    def _rest(self, text: str, id_: str) -> Iterator[Update]:
        """Yield the part of a message's text that no token had: all of it, as a new message, if the tokens differ."""
        if self._sent and text.startswith(self._sent):
            id_, text = self._message_id, text[len(self._sent) :]
        self._message_id = self._sent = ""
        if text:
            yield agent_message(text, id_)


def blocks_of(content: str | Sequence[Any]) -> list[TextContentBlock | ImageContentBlock]:
    """Return the blocks of a message or a result; what is neither text nor an image becomes text."""
    blocks: list[TextContentBlock | ImageContentBlock] = []
    for block in [content] if isinstance(content, str) else content:
        if isinstance(block, Mapping) and block.get("type") == "image" and "base64" in block:
            mime_type = str(block.get("mime_type") or "image/png")
            blocks.append(ImageContentBlock(type="image", data=block["base64"], mime_type=mime_type))
        else:
            blocks.append(text_block(text_of([block]) or visible_json(block)))
    return blocks


def thought(text: str) -> AgentThoughtChunk:
    """Return the update of a piece of reasoning."""
    return AgentThoughtChunk(session_update="agent_thought_chunk", content=text_block(text))


def title_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as one line."""
    return shorten(f"{visible(tool)} {visible_json(arguments)}", _TITLE_LENGTH)


def agent_message(text: str, id_: str = "") -> AgentMessageChunk:
    """Return the update of a piece of the agent's message.

    Args:
        id_: Id of the message; empty if it has none.
    """
    return AgentMessageChunk(session_update="agent_message_chunk", content=text_block(text), message_id=id_ or None)
