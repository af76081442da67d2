"""Fulfils a model's `web_search` calls with any search function."""

from __future__ import annotations

from graph_agent.core.extensions.web_search import Search as Search
from graph_agent.core.extensions.web_search import WebSearchInterception

__all__ = ["WebSearchInterception"]
