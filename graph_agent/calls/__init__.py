"""Exports calls (tool calls and delegations), and their parsers for model text.

``parse_tool_calls`` and ``split_tool_calls`` are pure and total: they never raise, and their work grows linearly with
the text. The parsers are imported on first access: an agent with native tool calls needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names
from graph_agent.base.calls import canonical_arguments, fingerprint, new_call_id
from graph_agent.base.types import Call

if TYPE_CHECKING:
    from graph_agent.models.wire.parsing.calls import (
        parse_tool_calls,
        read_text_calls,
        split_tool_calls,
        unfinished_call,
    )

__all__ = [
    "Call",
    "canonical_arguments",
    "fingerprint",
    "new_call_id",
    "parse_tool_calls",
    "read_text_calls",
    "split_tool_calls",
    "unfinished_call",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"graph_agent.models.wire.parsing.calls": "parse_tool_calls read_text_calls split_tool_calls unfinished_call"},
)
