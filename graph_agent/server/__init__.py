"""Serves one agent over HTTP: OpenAI's and Anthropic's chat APIs, A2A, and control of sessions.

Needs the extra `server`. Outside this package, only the commands `graph-agent serve` and `graph-agent a2a` import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.interfaces.server.admission.keys import read_keys
    from graph_agent.interfaces.server.agent_source import AgentSource, of_agent, of_file, of_served
    from graph_agent.interfaces.server.app import create_app
    from graph_agent.interfaces.server.settings import ApiKey, ServerSettings

__all__ = ["AgentSource", "ApiKey", "ServerSettings", "create_app", "of_agent", "of_file", "of_served", "read_keys"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.interfaces.server.admission.keys": "read_keys",
        "graph_agent.interfaces.server.agent_source": "AgentSource of_agent of_file of_served",
        "graph_agent.interfaces.server.app": "create_app",
        "graph_agent.interfaces.server.settings": "ApiKey ServerSettings",
    },
    extra=(__name__, "server"),
)
