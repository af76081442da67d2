"""Serves an agent as a tool of the Model Context Protocol (MCP), and its sessions as resources."""
