"""Descriptions of tools in the system prompt, for requests without native tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage, SystemMessage

from graph_agent.prompts import Prompts

M = TypeVar("M", bound=BaseMessage)


def tools_in_text(prompts: Prompts, schemas: Sequence[Mapping[str, Any]], *, plan: bool) -> str:
    """Render the descriptions of tools; empty without tools.

    Args:
        prompts: The agent's prompts.
        schemas: OpenAI schemas.
        plan: Whether the model writes its calls as structured plans.
    """
    if not schemas:
        return ""
    # A caller's function may lack these keys.
    absent = {"description": "", "parameters": {}}
    return prompts.render("text_tools", tools=[{**absent, **schema["function"]} for schema in schemas], plan=plan)


def replace_tools_text(messages: Sequence[M], before: str, after: str) -> list[M]:
    """Replace the descriptions of tools in the system prompt of a request; unchanged if they do not occur.

    Args:
        messages: The request.
        before: The descriptions in its system prompt; not empty.
        after: Their replacement.
    """
    return [
        _replace_in(message, before, after) if isinstance(message, SystemMessage) else message for message in messages
    ]


def _replace_in(message: M, before: str, after: str) -> M:
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
