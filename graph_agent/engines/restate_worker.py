"""Serves virtual objects to Restate over HTTP/2, and lets their runs end after SIGTERM."""

from __future__ import annotations

from graph_agent.interfaces.engines.restate_worker import serve

__all__ = ["serve"]
