"""The conversation API: runs, streams, control, history and results of one session."""

from __future__ import annotations

from graph_agent.runs.inbox import inbox_namespace
from graph_agent.session.session import Session

__all__ = ["Session", "inbox_namespace"]
