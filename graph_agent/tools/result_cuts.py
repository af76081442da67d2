"""Further truncation of tool results in requests that exceed the model's context window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage

from graph_agent._internal.text import text_of
from graph_agent.tools.truncation import TruncateMode, truncate_texts

LEAST_CHARS = 200
"""Minimum characters kept of each result."""
_WORTH_CUTTING = 100
"""Minimum characters that a cut must remove; its marker is nearly as long."""
_MOST_LINES = 1_000_000
_LEFT_OUT = "[… content of another kind left out here; the history keeps it …]"


def cuts_for(messages: Sequence[AnyMessage], excess: int) -> dict[str, int]:
    """Choose cuts that remove at least `excess` characters: the longest results first, all to the same length.

    Args:
        messages: A request, with earlier cuts applied.
        excess: Characters to remove.

    Returns:
        Message id → characters to keep; empty if no result is worth cutting.
    """
    sizes = {message.id: _size(message) for message in messages if isinstance(message, ToolMessage) and message.id}
    if not sizes:
        return {}
    longest = sorted(sizes.values(), reverse=True)
    total, level = 0, 0
    for count, size in enumerate(longest, 1):
        total += size
        level = (total - excess) // count
        if count == len(longest) or level >= longest[count]:
            break
    # Characters only approximate the provider's count; halving the longest always makes progress.
    keep = max(LEAST_CHARS, min(level, longest[0] // 2))
    return {id_: keep for id_, size in sizes.items() if size > keep + _WORTH_CUTTING}


def with_cuts(messages: Sequence[AnyMessage], cuts: Mapping[str, int]) -> list[AnyMessage]:
    """Return the messages with the cuts applied.

    Args:
        messages: A request, or a history.
        cuts: Message id → characters to keep.
    """
    return [_cut(message, keep) if (keep := cuts.get(message.id or "")) else message for message in messages]


def _cut(message: AnyMessage, chars: int) -> AnyMessage:
    content: Any = message.content
    if isinstance(content, list):
        content = [block if _is_text(block) else {"type": "text", "text": _LEFT_OUT} for block in content]
    kept = truncated_content(content, max_chars=chars, max_lines=_MOST_LINES)
    return message.model_copy(update={"content": content if kept is None else kept})


def _size(message: AnyMessage) -> int:
    content: Any = message.content
    if isinstance(content, str):
        return len(content)
    return sum(len(text_of([block])) if _is_text(block) else len(repr(block)) for block in content)


def _is_text(block: Any) -> bool:
    return isinstance(block, str) or "text" in block


def truncated_content(
    content: str | list[Any],
    *,
    max_chars: int,
    max_lines: int,
    mode: TruncateMode = "head_tail",
    hint: Callable[[int], str] | None = None,
) -> str | list[Any] | None:
    """Truncate text or content blocks; None if the content is within the limits.

    Args:
        content: Text, or content blocks. The limits apply to the text of all blocks together; a block whose whole text
            is cut is dropped, and blocks without text stay.
        max_chars: As for `truncate_texts`.
        max_lines: As for `truncate_texts`.
        mode: As for `truncate_texts`.
        hint: As for `truncate_texts`.
    """
    blocks = [content] if isinstance(content, str) else content
    texts = [text_of([block]) for block in blocks]
    kept = truncate_texts(texts, max_chars=max_chars, max_lines=max_lines, mode=mode, hint=hint)
    if kept is None:
        return None
    if isinstance(content, str):
        return kept[0] or ""
    # A block without text was not cut and stays.
    return [
        _with_text(block, text) for block, whole, text in zip(blocks, texts, kept, strict=True) if text or not whole
    ]


def _with_text(block: Any, text: str | None) -> Any:
    if not text:
        return block
    return text if isinstance(block, str) else {**block, "text": text}
