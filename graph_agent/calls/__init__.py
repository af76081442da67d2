"""Calls: what one is, and how they are read from what a model wrote.

``parse_tool_calls`` and ``split_tool_calls`` are pure and total: they never raise, and their work grows linearly with
the text.
"""

from __future__ import annotations

from .call import Call, canonical_arguments, fingerprint, new_call_id
from .parse import parse_tool_calls, split_tool_calls

__all__ = ["Call", "canonical_arguments", "fingerprint", "new_call_id", "parse_tool_calls", "split_tool_calls"]
