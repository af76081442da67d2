"""Connects agents with MCP servers, other agents, folders, and traces."""
