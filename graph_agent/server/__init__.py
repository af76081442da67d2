"""One agent served over HTTP: to OpenAI's and Anthropic's clients, and to whoever looks after its sessions.

It needs the extra `server`; nothing outside this package imports it but the command `graph-agent serve`.
"""

from __future__ import annotations

from graph_agent.server.app import create_app
from graph_agent.server.process.settings import ServerSettings
from graph_agent.server.process.sources import of_file, of_served

__all__ = ["ServerSettings", "create_app", "of_file", "of_served"]
