"""Marks tools with LangChain tool metadata that describes their calls to the loop, like MCP's annotations."""

from __future__ import annotations

from graph_agent.base.marks import MARKS, Marks, marked

__all__ = ["MARKS", "Marks", "marked"]
