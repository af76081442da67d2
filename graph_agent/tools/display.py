"""What the model is shown of a call's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph_agent.config import LoopConfig
from graph_agent.tools.output_limits import output_limits
from graph_agent.tools.read_result import READ_RESULT, how_to_read_on
from graph_agent.tools.result_cuts import truncated_content
from graph_agent.types import Call


def shown_output(
    content: str | list[Any], settings: LoopConfig, marks: Mapping[str, Any], call: Call
) -> tuple[str | list[Any], bool]:
    """Cut an output to the limits of its tool, of the tool's kind, or of the run (see `output_limits`).

    Where outputs are offloaded, what is over `offload_over_chars` is cut to that at most, and every marker says how to
    read the rest.

    Args:
        content: Text, or content blocks. The limits are for the text in all of them together; the blocks whose text is
            left out are left out, and those without text stay.
        settings: The run's limits.
        marks: The tool's marks: `kind`, `max_output_chars`, `max_output_lines`, `truncate`; empty for a delegate.
        call: The call that the output answers.

    Returns:
        The content to show, and whether anything was cut.
    """
    limits = output_limits(call["name"], marks, settings)
    threshold = settings.offload_over_chars if call["name"] != READ_RESULT else None
    if threshold is not None:
        limits = limits._replace(max_chars=min(limits.max_chars, threshold))

    def hint(offset: int) -> str:
        return how_to_read_on(call["id"], offset)

    kept = truncated_content(content, **limits._asdict(), hint=None if threshold is None else hint)
    return (content, False) if kept is None else (kept, True)
