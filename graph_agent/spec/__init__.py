"""Exports the agent file: an agent declared in YAML, which is validated and opened.

`open_agent` is imported on first access, so that reading a file loads no part of LangGraph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.agent_file.spec import AgentSpec, load_spec
from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.agent_file.factory import open_agent

__all__ = ["AgentSpec", "load_spec", "open_agent"]

__getattr__, __dir__ = lazy_names(__name__, {"graph_agent.agent_file.factory": "open_agent"})
