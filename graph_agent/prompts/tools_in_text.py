"""The part of a system prompt that tells a model of its tools, where the provider is not sent them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage, SystemMessage

from graph_agent.prompts import Prompts

M = TypeVar("M", bound=BaseMessage)


def tools_in_text(prompts: Prompts, schemas: Sequence[Mapping[str, Any]], *, plan: bool) -> str:
    """Tell of tools; empty for none.

    Args:
        prompts: Where the words come from.
        schemas: OpenAI schemas.
        plan: Whether calls are asked for in structured plans.
    """
    if not schemas:
        return ""
    # A caller's function may come without them.
    absent = {"description": "", "parameters": {}}
    return prompts.render("text_tools", tools=[{**absent, **schema["function"]} for schema in schemas], plan=plan)


def retold(messages: Sequence[M], before: str, after: str) -> list[M]:
    """A request that tells of other tools; as it is where its system prompt does not tell of these.

    Args:
        messages: The request.
        before: How its system prompt tells of its tools; not empty.
        after: What is to stand there.
    """
    return [_retold(message, before, after) if isinstance(message, SystemMessage) else message for message in messages]


def _retold(message: M, before: str, after: str) -> M:
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": content.replace(before, after)})
    blocks = [
        {**block, "text": str(block.get("text", "")).replace(before, after)}
        if isinstance(block, dict) and block.get("type") == "text"
        else block
        for block in content
    ]
    return message.model_copy(update={"content": blocks})
