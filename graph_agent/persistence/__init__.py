"""Exports savers and stores in SQLite, PostgreSQL and memory.

The public names are imported on first access, so that reading a URL loads no part of LangGraph.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_agent.checkpoints.maintenance import PruneReport, prune
    from graph_agent.checkpoints.open import open_cache, open_saver, open_store, strict_serializer
    from graph_agent.checkpoints.urls import check_cache

__all__ = ["PruneReport", "check_cache", "open_cache", "open_saver", "open_store", "prune", "strict_serializer"]

_MODULES = {"check_cache": "urls", "prune": "maintenance", "PruneReport": "maintenance"}
"""Modules of the names that are not in `open`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'graph_agent.persistence' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graph_agent.checkpoints.{_MODULES.get(name, 'open')}"), name)
