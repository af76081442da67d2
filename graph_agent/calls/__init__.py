"""Exports calls (tool calls and delegations), and their parsers for model text.

``parse_tool_calls`` and ``split_tool_calls`` are pure and total: they never raise, and their work grows linearly with
the text. The parsers are imported on first access: an agent with native tool calls needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graph_agent.parsing.call import canonical_arguments, fingerprint, new_call_id
from graph_agent.types import Call

if TYPE_CHECKING:
    from graph_agent.parsing.calls import parse_tool_calls, read_text_calls, split_tool_calls, unfinished_call

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

_HOMES = {
    "parse_tool_calls": "calls",
    "read_text_calls": "calls",
    "split_tool_calls": "calls",
    "unfinished_call": "calls",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'graph_agent.calls' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"graph_agent.parsing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
