"""Represents a reply in which the model or its provider refuses: its text is the answer of the input."""

from __future__ import annotations

from typing import Self

from langchain_core.messages import AIMessage

from graph_agent.base.types import Usage
from graph_agent.core.state.messages import stream_rest
from graph_agent.models.stream_watch import StreamWatch


class RefusedError(Exception):
    """Raised if the model or its provider refused the request. The input does not fail: the refusal becomes its answer.

    Args:
        message: The refusal; its text is the text of the error.
        usage: Usage of the request.
    """

    def __init__(self, message: AIMessage, usage: Usage) -> None:
        super().__init__(message.text)
        self.message = message
        self.usage = usage

    @classmethod
    def from_reply(cls, reply: AIMessage, text: str, usage: Usage) -> Self:
        """Create the error for a reply, whose id and metadata the message of the error has.

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
    """Stream the rest of a reply that refuses, and return (not raise) the error.

    If the refusal continues the streamed text, its rest is streamed in the same message. Otherwise the error's message
    has no id, so that it becomes another message. In a quiet stream, which readers do not receive, the id stays.

    Args:
        stream: The stream of the reply.
        reply: The whole reply.
        text: The text of the refusal.
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
