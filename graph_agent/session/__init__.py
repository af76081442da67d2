"""Exports the conversation API: runs, streams, control, history and results of one session.

The public names are imported on first access, so that reading a database's sessions loads no graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_agent.runs.inbox import inbox_namespace
    from graph_agent.session.session import Session

__all__ = ["Session", "inbox_namespace"]


def __getattr__(name: str) -> Any:
    if name == "Session":
        from graph_agent.session.session import Session

        return Session
    if name == "inbox_namespace":
        from graph_agent.runs.inbox import inbox_namespace

        return inbox_namespace
    raise AttributeError(f"module 'graph_agent.session' has no attribute {name!r}")
