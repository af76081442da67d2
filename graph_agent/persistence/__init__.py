"""Exports savers and stores in SQLite, PostgreSQL and memory.

The public names are imported on first access, so that reading a URL loads no part of LangGraph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.base.database_urls import check_cache
    from graph_agent.storage.checkpoints.maintenance import PruneReport, prune
    from graph_agent.storage.checkpoints.open import open_cache, open_saver, open_store, strict_serializer

__all__ = ["PruneReport", "check_cache", "open_cache", "open_saver", "open_store", "prune", "strict_serializer"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.storage.checkpoints.maintenance": "PruneReport prune",
        "graph_agent.storage.checkpoints.open": "open_cache open_saver open_store strict_serializer",
        "graph_agent.base.database_urls": "check_cache",
    },
)
