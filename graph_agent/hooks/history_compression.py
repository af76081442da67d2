"""Compresses long tool results in requests; the history keeps them whole."""

from __future__ import annotations

from graph_agent.core.hooks.history_compression import Compress as Compress
from graph_agent.core.hooks.history_compression import HistoryCompression

__all__ = ["HistoryCompression"]
