"""The agent file: an agent declared in YAML, validated and opened."""

from __future__ import annotations

from graph_agent.spec.agent_file import AgentSpec, load_spec
from graph_agent.spec.opening import open_agent

__all__ = ["AgentSpec", "load_spec", "open_agent"]
