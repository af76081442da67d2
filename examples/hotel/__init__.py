"""A hotel desk: an agent that resolves dates, looks up rooms through an MCP server and books them."""
