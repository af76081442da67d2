"""Releases a reply's text in LangGraph's message stream once it may be shown."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from graph_agent.base._compat import MakeGate, StreamMessagesHandler, emit_message, queue_of

Entry = tuple[Any, ...]
"""One entry of LangGraph's stream: namespace, stream mode, and a pair of message (or protocol event) and metadata."""


class MessageGate:
    """Holds back the message-stream entries of one reply until their text may be shown; releases them in order.

    An entry without text, e.g. a chunk of a call, waits for the text before it. When a message is dropped, its id is
    removed from `seen`, so that LangGraph emits the message that a node returns instead.

    Args:
        send: Puts an entry into LangGraph's stream.
        seen: Message ids that LangGraph regards as streamed already; changed in place.
    """

    def __init__(self, send: Callable[[Entry], None], seen: set[int | str]) -> None:
        self._send = send
        self._seen = seen
        self._waiting: deque[tuple[Entry, str]] = deque()
        """Entries that are held back, each with its text."""
        self._at = 0
        """Length of the reply's text before the first waiting entry."""
        self._begin = self._end = 0
        self._sent_ids: set[str | None] = set()

    def __call__(self, entry: Entry) -> None:
        """Send an entry at once if its text may be shown already; otherwise hold it back."""
        payload = entry[2][0]
        # Its class is checked without `isinstance`, which pydantic makes slow for a base class.
        is_event = type(payload) is dict
        text = _text_of_event(payload) if is_event else message_text(payload)
        end = self._at + len(text)
        # Most entries may be shown at once, and are not queued.
        if text and not self._waiting and self._begin <= self._at and end <= self._end:
            self._at = end
            self._sent_ids.add(payload.get("id") if is_event else payload.id)
            self._send(entry)
            return
        self._waiting.append((entry, text))
        self._release()

    def show(self, begin: int, end: int) -> None:
        """Release the text from index `begin` to `end` of the reply.

        Text before `begin` is dropped; `end` must not decrease.
        """
        self._begin, self._end = begin, end
        if self._waiting:
            self._release()

    def close(self) -> None:
        """End the reply: send waiting entries that have no text, and drop text after the visible end."""
        while self._waiting:
            self._deliver(*self._waiting.popleft())

    def drop(self) -> None:
        """Drop all waiting entries, and reset the gate for another reply.

        The ids of messages of which nothing was sent are removed from `seen`, so that LangGraph emits their
        replacement.
        """
        for entry, _ in self._waiting:
            if (id_ := _id_of(entry)) is not None and id_ not in self._sent_ids:
                self._seen.discard(id_)
        self._waiting.clear()
        self._at = self._begin = self._end = 0

    def _release(self) -> None:
        """Send waiting entries in order as far as their text may be shown; an entry is split if only a part of it may.

        Entries without text go with the text before them. Nothing is sent while no text may be shown.
        """
        while self._waiting and self._end > self._begin:
            entry, text = self._waiting[0]
            available = self._end - self._at
            if len(text) > available:
                if available > 0:
                    # Only a part of the entry may be shown so far.
                    rest = _with_text(entry, text[available:])
                    self._waiting[0] = rest, text[available:]
                    self._deliver(_with_text(rest, text[:available]), text[:available])
                return
            self._deliver(*self._waiting.popleft())

    def _deliver(self, entry: Entry, text: str) -> None:
        """Send the visible part of an entry, and advance the position by the length of its text.

        An entry with text is dropped if none of it is visible. One without text is sent; if it closes a text block, the
        block's text in it is cut to what is visible.
        """
        start = self._at
        if text:
            shown = text[max(0, self._begin - start) : max(0, self._end - start)]
            if not shown:
                self._at += len(text)
                return
            entry = entry if shown == text else _with_text(entry, shown)
        elif (block := _finished_text(entry)) is not None:
            start -= len(block)
            entry = _with_text(entry, block[max(0, self._begin - start) : max(0, self._end - start)])
        self._at += len(text)
        self._sent_ids.add(_id_of(entry))
        self._send(entry)


def message_text(message: BaseMessage) -> str:
    """Return a message's text; faster than `message.text`, which builds an object for each access."""
    content = message.content
    return content if isinstance(content, str) else str(message.text)


def _text_of_event(event: dict[str, Any]) -> str:
    """Return the text that a protocol event of `stream_events(version="v3")` adds to the reply; empty for others."""
    return str(event["delta"].get("text", "")) if event.get("event") == "content-block-delta" else ""


def _finished_text(entry: Entry) -> str | None:
    """Return the complete text of the block that a protocol event closes; None for other entries."""
    payload = entry[2][0]
    if type(payload) is not dict or payload.get("event") != "content-block-finish":
        return None
    text = payload["content"].get("text")
    return text if isinstance(text, str) and payload["content"].get("type") == "text" else None


def _id_of(entry: Entry) -> str | None:
    """Return the message id of an entry; None if it has none."""
    payload = entry[2][0]
    found = payload.get("id") if type(payload) is dict else payload.id
    return found if isinstance(found, str) else None


def _with_text(entry: Entry, text: str) -> Entry:
    """Return a copy of an entry of the message stream with another text; its other content blocks stay, before the
    text.
    """
    namespace, mode, (payload, metadata) = entry
    if not isinstance(payload, BaseMessage):
        key = "delta" if "delta" in payload else "content"
        payload = {**payload, key: {**payload[key], "text": text}}
    elif isinstance(payload.content, str):
        payload = payload.model_copy(update={"content": text})
    else:
        others = [block for block in payload.content if isinstance(block, dict) and block.get("type") != "text"]
        first = next((block for block in payload.content if isinstance(block, dict) and block not in others), {})
        payload = payload.model_copy(update={"content": [*others, {"type": "text", **first, "text": text}]})
    return namespace, mode, (payload, metadata)


class MessageStream:
    """Writes the tokens of one model call to LangGraph's message stream. Create it on the running event loop.

    Args:
        handler: LangGraph's callback handler of the stream; it is copied.
    """

    def __init__(self, handler: StreamMessagesHandler) -> None:
        self.handler = copy.copy(handler)
        """Receives the events that do not go through this class."""
        self._meta: Any = None
        loop = asyncio.get_running_loop()
        if (put := queue_of(handler, loop)) is not None:
            self.handler.stream = _LoopSender(loop, put)

    def gated(self, gate: MakeGate) -> MessageStream:
        """Return a copy of this stream whose entries pass through a gate, which holds text back until it may be shown.

        Args:
            gate: Builds the gate from the function that sends an entry and the set of ids already streamed.
        """
        other = copy.copy(self)
        other.handler = copy.copy(self.handler)
        other.handler.stream = gate(self.handler.stream, self.handler.seen)
        return other

    def begin(self, run: AsyncCallbackManagerForLLMRun, request: Sequence[BaseMessage]) -> None:
        """Report the start of a model call; `run` is its callback manager, `request` its messages."""
        of_run: dict[str, Any] = {"run_id": run.run_id, "parent_run_id": run.parent_run_id}
        self.handler.on_chat_model_start({}, [list(request)], **of_run, tags=run.tags, metadata=run.metadata)
        self._meta = self.handler.metadata.get(run.run_id)

    def send(self, message: BaseMessage) -> None:
        """Emit one token; does nothing if the stream excludes this model call, e.g. by the tag `nostream`."""
        if self._meta is not None:
            emit_message(self.handler, self._meta, message)

    def end(self, run: AsyncCallbackManagerForLLMRun, result: LLMResult) -> None:
        """Report the complete reply, which is emitted unless it was streamed."""
        self.handler.on_llm_end(result, run_id=run.run_id, parent_run_id=run.parent_run_id)

    def fail(self, run: AsyncCallbackManagerForLLMRun, error: BaseException) -> None:
        """Report the error that ended the model call."""
        self.handler.on_llm_error(error, run_id=run.run_id, parent_run_id=run.parent_run_id)


class _LoopSender:
    """Puts stream entries into LangGraph's queue through the running event loop, in order.

    LangGraph itself would also wake the loop through a socket for each entry, which only other threads need.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, put: Callable[[Any], None]) -> None:
        self._loop = loop
        self._put = put
        self._thread = threading.get_ident()

    def __call__(self, entry: Any) -> None:
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._put, entry)
        else:
            self._loop.call_soon_threadsafe(self._put, entry)
