"""LangGraph's message stream without a wake-up of the event loop for each token."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from graph_agent._compat import MakeGate, StreamMessagesHandler, emit_message, queue_of


class MessageStream:
    """LangGraph's message stream for one model call on the running loop."""

    def __init__(self, handler: StreamMessagesHandler) -> None:
        self.handler = copy.copy(handler)
        """Receives the events that do not pass through the methods of this class."""
        self._meta: Any = None
        loop = asyncio.get_running_loop()
        if (put := queue_of(handler, loop)) is not None:
            self.handler.stream = _LoopSender(loop, put)

    def gated(self, gate: MakeGate) -> MessageStream:
        """Return a stream whose entries pass through a gate."""
        other = copy.copy(self)
        other.handler = copy.copy(self.handler)
        other.handler.stream = gate(self.handler.stream, self.handler.seen)
        return other

    def begin(self, run: AsyncCallbackManagerForLLMRun, request: Sequence[BaseMessage]) -> None:
        """Start the reply to a request."""
        of_run: dict[str, Any] = {"run_id": run.run_id, "parent_run_id": run.parent_run_id}
        self.handler.on_chat_model_start({}, [list(request)], **of_run, tags=run.tags, metadata=run.metadata)
        self._meta = self.handler.metadata.get(run.run_id)

    def send(self, message: BaseMessage) -> None:
        """Send one token; nothing if the stream leaves out this model call."""
        if self._meta is not None:
            emit_message(self.handler, self._meta, message)

    def end(self, run: AsyncCallbackManagerForLLMRun, result: LLMResult) -> None:
        """End the reply."""
        self.handler.on_llm_end(result, run_id=run.run_id, parent_run_id=run.parent_run_id)

    def fail(self, run: AsyncCallbackManagerForLLMRun, error: BaseException) -> None:
        """End the reply with an error."""
        self.handler.on_llm_error(error, run_id=run.run_id, parent_run_id=run.parent_run_id)


class _LoopSender:
    """Sends the entries of one model call to LangGraph's queue through the running loop, in order with all others.

    LangGraph also wakes the loop through a socket for each entry, which only an entry of another thread needs.
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
