"""Serves one agent over HTTP: OpenAI's and Anthropic's chat APIs, A2A, and control of sessions.

Needs the extra `server`. Outside this package, only the commands `graph-agent serve` and `graph-agent a2a` import it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graph_agent._internal.extras import missing_extra

if TYPE_CHECKING:
    from graph_agent.server.app import create_app
    from graph_agent.server.hosting.host import of_file, of_served
    from graph_agent.server.settings import ApiKey, ServerSettings

__all__ = ["ApiKey", "ServerSettings", "create_app", "of_file", "of_served"]

_MODULES = {
    "ApiKey": "settings",
    "ServerSettings": "settings",
    "create_app": "app",
    "of_file": "hosting.host",
    "of_served": "hosting.host",
}


def __getattr__(name: str) -> Any:
    # Imported on access, so that `graph-agent serve` checks its options, its file and its address first.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ImportError as missing:
        raise missing_extra(__name__, "server", missing) from None
