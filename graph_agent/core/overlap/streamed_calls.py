"""Reads the calls of a planning reply while it streams, and passes on each that is complete."""

from __future__ import annotations

from typing import Protocol

from langchain_core.messages import AIMessageChunk, BaseMessage

from graph_agent.base.calls import checked_call
from graph_agent.base.tool_names import PLAN_TOOL
from graph_agent.base.types import Call
from graph_agent.core.overlap.streamed_objects import StreamedObjects
from graph_agent.models.message_gate import message_text


class CallReceiver(Protocol):
    """Receives the complete calls of a reply, with the arguments of the model."""

    def begin(self) -> None:
        """Begin a new reply."""
        ...

    def receive(self, call: Call) -> None:
        """Receive a native call."""
        ...

    def receive_planned(self, call: Call) -> None:
        """Receive a call of a structured plan, with `needs` as declared."""
        ...


class StreamedCalls:
    """Reads native calls and structured plans; implements `ChunkListener`.

    Args:
        receiver: Receives each complete call.
        is_structured: Whether the reply is a structured plan, in its text or as a call of `PLAN_TOOL`.
    """

    def __init__(self, receiver: CallReceiver, *, is_structured: bool) -> None:
        self._receiver = receiver
        self._is_structured = is_structured
        self.begin()

    def begin(self) -> None:
        """Begin a new reply."""
        self._receiver.begin()
        self._text = StreamedObjects("tools")
        self._calls: dict[int, _StreamedCall] = {}
        """Index of a native call → what has arrived of it."""
        self._newest = -1
        """Index of the native call that arrives."""

    def receive(self, message: BaseMessage) -> None:
        """Read the next chunk."""
        if not isinstance(message, AIMessageChunk):
            return
        if self._is_structured and (text := message_text(message)):
            self._read_plan(self._text, text)
        for piece in message.tool_call_chunks:
            name, index = piece.get("name") or "", piece.get("index")
            # Some servers leave the index out; each call then begins with its name.
            self._newest = index if index is not None else self._newest + bool(name)
            call = self._calls.setdefault(self._newest, _StreamedCall(name, piece.get("id") or ""))
            if self._is_structured and call.name == PLAN_TOOL:
                self._read_plan(call.plan, piece.get("args") or "")
                continue
            for arguments in call.arguments.feed(piece.get("args") or ""):
                self._receiver.receive(checked_call(call.id, call.name, arguments))

    def _read_plan(self, reader: StreamedObjects, text: str) -> None:
        """Read the next piece of a structured plan."""
        for planned in reader.feed(text):
            id_, tool, arguments, needs = (planned.get(name) for name in ("id", "tool", "args", "needs"))
            arguments = {} if arguments is None else arguments
            if isinstance(id_, str) and isinstance(tool, str) and isinstance(arguments, dict):
                call = checked_call(id_, tool, arguments)
                self._receiver.receive_planned({**call, "needs": needs} if isinstance(needs, list) else call)


class _StreamedCall:
    """A native call as far as it has arrived."""

    def __init__(self, name: str, id_: str) -> None:
        self.name = name
        self.id = id_
        self.arguments = StreamedObjects()
        self.plan = StreamedObjects("tools")
