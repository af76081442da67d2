"""Tool results that requests hold with another text than the history: what hooks make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from graph_agent.hooks.copies import copied
from graph_agent.hooks.faults import fail_or_skip
from graph_agent.hooks.protocol import LoopHook
from graph_agent.models.side_calls import call_aside


async def result_texts(
    hooks: Sequence[LoopHook],
    messages: Sequence[AnyMessage],
    warn: Callable[[str], None],
    heard: Callable[[AIMessage], None],
) -> dict[str, str]:
    """Have the hooks rewrite tool results, each what the hooks before it left.

    Args:
        hooks: Those of the agent's hooks that rewrite results, in order.
        messages: The conversation.
        warn: Takes a warning for the user.
        heard: Given each reply of a model that a hook asks by itself.

    Returns:
        Message id → text of the results that change.

    Raises:
        HookError: When a hook fails that declares `on_error = "fail"`.
    """
    texts: dict[str, str] = {}
    if not hooks:
        return texts
    results = [message for message in messages if isinstance(message, ToolMessage)]
    for hook in hooks:
        try:
            made = await call_aside(hook.rewrite_results, copied(with_texts(results, texts)), heard=heard)
            texts |= _checked(made)
        except BaseException as error:  # noqa: BLE001 - a hook may raise anything; its `on_error` says what that does
            fail_or_skip(hook, error, warn)
    return texts


def with_texts(messages: Sequence[Any], texts: Mapping[str, str]) -> list[Any]:
    """The messages with the text of some results replaced; their images and files stay.

    Args:
        messages: The messages.
        texts: Message id → text.
    """
    return [
        _with_text(message, texts[message.id])
        if isinstance(message, ToolMessage) and message.id is not None and message.id in texts
        else message
        for message in messages
    ]


def _with_text(result: ToolMessage, text: str) -> ToolMessage:
    content: Any = text
    if isinstance(result.content, list):
        rest = [block for block in result.content if isinstance(block, dict) and block.get("type") != "text"]
        content = [{"type": "text", "text": text}, *rest]
    return result.model_copy(update={"content": content})


def _checked(made: Any) -> dict[str, str]:
    if not isinstance(made, Mapping):
        raise TypeError(f"rewrite_results returned {made!r}; return a mapping of message id → text")
    for id_, text in made.items():
        if not isinstance(text, str):
            raise TypeError(f"rewrite_results gave {text!r} for the result {id_!r}; give text")
    return dict(made)
