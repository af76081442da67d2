"""Represents a reply in which the model or its provider refuses: its text is the answer of the input."""

from __future__ import annotations

from typing import Self

from langchain_core.messages import AIMessage

from graph_agent.base.types import Usage
from graph_agent.core.state.messages import stream_rest
from graph_agent.models.stream_watch import StreamWatch


class RefusedError(Exception):
    """The model or its provider refused the request; the text of the error is that of the refusal.

    Args:
        message: The refusal, which is the answer of the input.
        usage: Usage of the request.
    """

    def __init__(self, message: AIMessage, usage: Usage) -> None:
        super().__init__(message.text)
        self.message = message
        self.usage = usage

    @classmethod
    def from_reply(cls, reply: AIMessage, text: str, usage: Usage) -> Self:
        """Build the error for a reply.

        Args:
            reply: The whole reply.
            text: Its refusal, which may be only a part of its text.
            usage: Usage of the request.
        """
        # Keep the reply's id, because its tokens may have been streamed.
        message = AIMessage(
            text, id=reply.id, usage_metadata=reply.usage_metadata, response_metadata=reply.response_metadata
        )
        return cls(message, usage)


async def finish_refusal(stream: StreamWatch, reply: AIMessage, text: str, usage: Usage) -> RefusedError:
    """Stream the rest of a reply that refuses, and return the error to raise.

    The text of the error continues the text that was streamed, or replaces it in another message.

    Args:
        stream: Records the text that the reader has received.
        reply: The whole reply.
        text: Its refusal.
        usage: Usage of the request.
    """
    await stream.finish(reply.text, reply.text, reply.id)
    refused = RefusedError.from_reply(reply, text, usage)
    if not stream.is_quiet:
        if reply.text and text.startswith(reply.text):
            stream_rest(refused.message, reply.text)
        else:
            # The streamed text, if any, is another message, because it cannot be taken back.
            refused.message.id = None
    return refused
