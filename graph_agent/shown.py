"""What the model is shown of a tool's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph_agent.config import LoopConfig
from graph_agent.truncation import truncate


def shown_output(
    content: str | list[Any], settings: LoopConfig, marks: Mapping[str, Any]
) -> tuple[str | list[Any], bool]:
    """Cut an output to the run's limits, or the tool's own.

    Args:
        content: Text, or content blocks; only the text in them is cut.
        settings: The run's limits.
        marks: The tool's marks: `max_output_chars`, `max_output_lines`, `truncate`.

    Returns:
        The content to show, and whether anything was cut.
    """
    limits: dict[str, Any] = {
        "max_chars": marks.get("max_output_chars", settings.max_output_chars),
        "max_lines": marks.get("max_output_lines", settings.max_output_lines),
        "mode": marks.get("truncate", "head_tail"),
    }
    if isinstance(content, str):
        return truncate(content, **limits)
    blocks: list[Any] = []
    cut = False
    for block in content:
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            text, truncated = truncate(block["text"], **limits)
            blocks.append({**block, "text": text} if truncated else block)
            cut |= truncated
        else:
            blocks.append(block)
    return blocks, cut
