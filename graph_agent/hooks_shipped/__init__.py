"""Loop hooks that are ready to use: searching the web on the model's behalf, and shortening long results."""

from __future__ import annotations

from graph_agent.hooks_shipped.history_compression import HistoryCompression
from graph_agent.hooks_shipped.web_search import WebSearchInterception

__all__ = ["HistoryCompression", "WebSearchInterception"]
