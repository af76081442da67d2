"""Tool results whose text hooks rewrite in requests; the history keeps the original text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from graph_agent.hooks.copies import copied
from graph_agent.hooks.faults import fail_or_skip
from graph_agent.hooks.protocol import LoopHook
from graph_agent.models.side_calls import run_side_call


async def result_texts(
    hooks: Sequence[LoopHook],
    messages: Sequence[AnyMessage],
    warn: Callable[[str], None],
    count_reply: Callable[[AIMessage], None],
) -> dict[str, str]:
    """Have the hooks rewrite tool results; each hook receives the results of the hooks before it.

    Args:
        hooks: The hooks that rewrite results, in order.
        messages: The conversation.
        warn: Receives warnings for the user.
        count_reply: Receives each reply of a model that a hook calls itself.

    Returns:
        Message id → new text of the changed results.

    Raises:
        HookError: If a hook with `on_error = "fail"` fails.
    """
    texts: dict[str, str] = {}
    if not hooks:
        return texts
    results = [message for message in messages if isinstance(message, ToolMessage)]
    for hook in hooks:
        try:
            returned = await run_side_call(
                hook.rewrite_results, copied(with_texts(results, texts)), on_reply=count_reply
            )
            texts |= _checked(returned)
        except BaseException as error:  # noqa: BLE001 - a hook may raise anything; its `on_error` selects the response
            fail_or_skip(hook, error, warn)
    return texts


def with_texts(messages: Sequence[Any], texts: Mapping[str, str]) -> list[Any]:
    """Replace the text of tool results; their images and files stay.

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


def _checked(returned: Any) -> dict[str, str]:
    if not isinstance(returned, Mapping):
        raise TypeError(f"rewrite_results returned {returned!r}; return a mapping of message id → text")
    for id_, text in returned.items():
        if not isinstance(text, str):
            raise TypeError(f"rewrite_results gave {text!r} for the result {id_!r}; give text")
    return dict(returned)
