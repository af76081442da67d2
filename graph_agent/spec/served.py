"""Exports the agent of a file for servers that request a graph per request, such as `langgraph dev`."""

from graph_agent.agent_file.factory import ServedAgent, served

__all__ = ["ServedAgent", "served"]
