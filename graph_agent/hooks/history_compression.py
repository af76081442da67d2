"""Compresses long tool results in requests; the history keeps them whole."""

from __future__ import annotations

from graph_agent.core.extensions.history_compression import Compress as Compress
from graph_agent.core.extensions.history_compression import HistoryCompression

__all__ = ["HistoryCompression"]
