"""Calls: what one is, and how they are read from what a model wrote.

``parse_tool_calls`` and ``split_tool_calls`` are pure and total: they never raise, and their work grows linearly with
the text.
"""

from __future__ import annotations

from graph_agent.calls.call import canonical_arguments, fingerprint, new_call_id
from graph_agent.calls.parse import parse_tool_calls, split_tool_calls
from graph_agent.calls.unfinished import unfinished_call
from graph_agent.types import Call

__all__ = [
    "Call",
    "canonical_arguments",
    "fingerprint",
    "new_call_id",
    "parse_tool_calls",
    "split_tool_calls",
    "unfinished_call",
]
