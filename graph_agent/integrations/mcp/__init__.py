"""Offers tools from MCP servers, over sessions that stay open."""
