"""Exports an A2A server over a compiled agent graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.extras import needs_extra
from graph_agent.base._internal.lazy import lazy_names

with needs_extra("graph_agent.a2a.server", "server"):
    from graph_agent.interfaces.server.a2a.app import A2AServer

if TYPE_CHECKING:
    from graph_agent.interfaces.server.a2a.mount import a2a_app, agent_card

__all__ = ["A2AServer", "a2a_app", "agent_card"]

__getattr__, __dir__ = lazy_names(__name__, {"graph_agent.interfaces.server.a2a.mount": "a2a_app agent_card"})
