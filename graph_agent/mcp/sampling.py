"""Answers a server's requests to a model (`sampling/createMessage`) with the agent's model."""

from __future__ import annotations

from typing import Any

import mcp.types as types
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from graph_agent._internal.failure_log import get_logger, log_failure
from graph_agent._internal.text import text_of
from graph_agent.mcp.connections import ServerConfig
from graph_agent.models.sampling import Sampler
from graph_agent.usage import LimitMetError

logger = get_logger("graph_agent.mcp")

MAX_SAMPLES = 16
"""Requests to the model that a server may make during one call."""
_STOP_REASONS = {"length": "maxTokens", "max_tokens": "maxTokens", "MAX_TOKENS": "maxTokens"}


async def answer_with(
    sampler: Sampler, params: types.CreateMessageRequestParams, config: ServerConfig
) -> types.CreateMessageResult | types.ErrorData:
    """Send a server's request to the agent's model; a failure is an error answer.

    The reply has at most `sampling_max_tokens` of the connection. Requests with tools are refused.
    """
    if params.tools:
        return refused("This client does not offer tools in sampling.")
    try:
        request = _messages(params)
    except ValueError as error:
        return refused(str(error))
    try:
        reply = await sampler.sample(
            request,
            max_tokens=max(1, min(params.maxTokens, config.sampling_max_tokens)),
            temperature=params.temperature,
            stop=params.stopSequences,
        )
    except LimitMetError as error:
        return refused(f"The agent's budget is used up: {error}")
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; the server gets an error answer
        log_failure(logger, f"The model's reply to the MCP server {config.name!r}", error)
        return types.ErrorData(code=types.INTERNAL_ERROR, message=f"The model failed: {type(error).__name__}.")
    metadata = reply.response_metadata
    reason = metadata.get("finish_reason") or metadata.get("stop_reason")
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(type="text", text=text_of(reply.content)),
        model=str(metadata.get("model_name") or metadata.get("model") or "unknown"),
        stopReason=_STOP_REASONS.get(str(reason), "endTurn"),
    )


def refused(why: str) -> types.ErrorData:
    """Return the error answer to a request that was not sent to the model."""
    return types.ErrorData(code=types.INVALID_REQUEST, message=why)


def _messages(params: types.CreateMessageRequestParams) -> list[BaseMessage]:
    """Return the request as LangChain messages. Raises `ValueError` for content that models do not receive."""
    request: list[BaseMessage] = [SystemMessage(params.systemPrompt)] if params.systemPrompt else []
    for message in params.messages:
        blocks = [_block(block) for block in message.content_as_list]
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        content: str | list[Any] = texts[0] if len(texts) == len(blocks) == 1 else blocks
        request.append(HumanMessage(content) if message.role == "user" else AIMessage(content))
    return request


def _block(block: types.SamplingMessageContentBlock) -> dict[str, Any]:
    match block:
        case types.TextContent():
            return {"type": "text", "text": block.text}
        case types.ImageContent() | types.AudioContent():
            return {"type": block.type, "base64": block.data, "mime_type": block.mimeType}
        case _:
            raise ValueError(f"Content of type {block.type!r} is not supported in sampling.")
