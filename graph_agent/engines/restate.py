"""Serves an agent as a Restate virtual object per session: Restate delivers inputs, checkpoints hold the work."""

from __future__ import annotations

from graph_agent.interfaces.engines.restate import RUNS as RUNS
from graph_agent.interfaces.engines.restate import ContextOf as ContextOf
from graph_agent.interfaces.engines.restate import ResumeRequest, RunRequest, agent_object

__all__ = ["ResumeRequest", "RunRequest", "agent_object"]
