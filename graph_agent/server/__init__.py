"""HTTP server of one agent: OpenAI's and Anthropic's chat APIs, A2A, and control of sessions.

Needs the extra `server`. Outside this package, only the commands `graph-agent serve` and `graph-agent a2a` import it.
"""

from __future__ import annotations

from graph_agent.server.app import create_app
from graph_agent.server.hosting.sources import of_file, of_served
from graph_agent.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app", "of_file", "of_served"]
