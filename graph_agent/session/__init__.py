"""Exports the conversation API: runs, streams, control, history and results of one session.

The public names are imported on first access, so that reading a database's sessions loads no graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.base.inbox import inbox_namespace
    from graph_agent.session.session import Session

__all__ = ["Session", "inbox_namespace"]

__getattr__, __dir__ = lazy_names(
    __name__, {"graph_agent.base.inbox": "inbox_namespace", "graph_agent.session.session": "Session"}
)
