"""Starts the server in one process, or in several on one database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.interfaces.server.serve import SERVE_THRESHOLDS as SERVE_THRESHOLDS
    from graph_agent.interfaces.server.serve import freeze_gc as freeze_gc
    from graph_agent.interfaces.server.serve import serve as serve
    from graph_agent.interfaces.server.serve import serve_a2a as serve_a2a
    from graph_agent.interfaces.server.serve import serve_page as serve_page
    from graph_agent.interfaces.server.startup import STARTUP_FAILURE as STARTUP_FAILURE
    from graph_agent.interfaces.server.startup import StartupErrors as StartupErrors
    from graph_agent.interfaces.server.startup import bind_socket as bind_socket
    from graph_agent.interfaces.server.startup import has_failed as has_failed
    from graph_agent.interfaces.server.startup import url_of as url_of

__all__ = []

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.interfaces.server.serve": "SERVE_THRESHOLDS freeze_gc serve serve_a2a serve_page",
        "graph_agent.interfaces.server.startup": "STARTUP_FAILURE StartupErrors bind_socket has_failed url_of",
    },
)
