"""What an agent uses: MCP servers, other agents, folders, and traces."""
