"""Lets code above the models follow the chunks of a reply while it streams."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from langchain_core.messages import BaseMessage


class ChunkListener(Protocol):
    """Receives the chunks of one model reply after the other, while they stream."""

    def begin(self) -> None:
        """Forget the chunks so far: a reply begins, of the first attempt of a request or of another one after a
        failure."""

    def receive(self, message: BaseMessage) -> None:
        """Receive one chunk, in the order of the stream; it must not be changed."""


chunk_listener: ContextVar[ChunkListener | None] = ContextVar("graph_agent_chunk_listener", default=None)
"""The listener of the requests that the current task sends; None if nothing follows them."""
