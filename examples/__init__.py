"""Worked examples of graph-agent."""
