"""Exports an A2A server over a compiled agent graph."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graph_agent._internal.extras import missing_extra

try:
    from graph_agent.server.a2a.app import A2AServer
except ImportError as missing:
    raise missing_extra("graph_agent.a2a.server", "server", missing) from None

if TYPE_CHECKING:
    from graph_agent.server.a2a.mount import a2a_app

__all__ = ["A2AServer", "a2a_app"]


def __getattr__(name: str) -> Any:
    # The application is defined in a higher layer, since it includes the servers' admission layer.
    if name != "a2a_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("graph_agent.server.a2a.mount").a2a_app
