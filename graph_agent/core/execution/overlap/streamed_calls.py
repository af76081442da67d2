"""Reads the calls of a planning reply while it streams, and passes on each that is complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from langchain_core.messages import AIMessageChunk, BaseMessage

from graph_agent.base.calls import checked_call
from graph_agent.base.tool_names import PLAN_TOOL
from graph_agent.base.types import Call
from graph_agent.core.execution.overlap.streamed_objects import StreamedObjects
from graph_agent.models.client import Mode
from graph_agent.models.message_gate import message_text


class CallReceiver(Protocol):
    """Receives the complete calls of a reply, with the arguments of the model."""

    def begin(self) -> None:
        """Begin a new reply."""

    def receive(self, call: Call) -> None:
        """Receive a native call."""

    def receive_planned(self, call: Call) -> None:
        """Receive a call of a structured plan, with `needs` as declared."""


class StreamedCalls:
    """Reads native calls, calls in text that are JSON objects, and structured plans; implements `ChunkListener`.

    Args:
        receiver: Receives each complete call.
        mode: The form of the calls; a structured plan is in the text of the reply or in a call of `PLAN_TOOL`.
        parse: Returns the calls in a text that is one JSON object.
    """

    def __init__(self, receiver: CallReceiver, mode: Mode, parse: Callable[[str], Sequence[Call]]) -> None:
        self._receiver = receiver
        self._mode = mode
        self._parse = parse
        self.begin()

    def begin(self) -> None:
        """Begin a new reply: discard the pieces of the last one, and reset the receiver."""
        self._receiver.begin()
        self._text = StreamedObjects("tools" if self._mode == "wave" else None)
        self._calls: dict[int, _StreamedCall] = {}
        """Index of a native call → what has arrived of it."""
        self._newest = -1
        """Index of the native call that arrives."""

    def receive(self, message: BaseMessage) -> None:
        """Read the next chunk, and pass each call that it completes to the receiver, with a `fault` if its arguments
        are invalid.

        Native calls are read in every mode. In mode `text`, calls in the text are read, too; in mode `wave`, the calls
        of a structured plan, in the text or in the arguments of the plan tool. Messages other than chunks are ignored.
        """
        if not isinstance(message, AIMessageChunk):
            return
        text = "" if self._mode == "native" else message_text(message)
        if text and self._mode == "wave":
            self._read_plan(self._text, text)
        elif text:
            for found in self._text.feed(text):
                for call in self._parse(json.dumps(found)):
                    self._receiver.receive(checked_call(call["id"], call["name"], call["arguments"]))
        for piece in message.tool_call_chunks:
            name, index = piece.get("name") or "", piece.get("index")
            # Some servers leave the index out; each call then begins with its name.
            self._newest = index if index is not None else self._newest + bool(name)
            native = self._calls.setdefault(self._newest, _StreamedCall(name, piece.get("id") or ""))
            if self._mode == "wave" and native.name == PLAN_TOOL:
                self._read_plan(native.plan, piece.get("args") or "")
                continue
            for arguments in native.arguments.feed(piece.get("args") or ""):
                self._receiver.receive(checked_call(native.id, native.name, arguments))

    def _read_plan(self, reader: StreamedObjects, text: str) -> None:
        """Read the next piece of a structured plan, and pass on each call that it completes.

        Entries without a text as `id` and `tool` are skipped, and those whose `args` are no object; absent `args` count
        as empty, and `needs` that are no list as none.

        Args:
            reader: The parser of this text.
            text: The piece.
        """
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
