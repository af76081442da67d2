"""Offers tools from MCP servers, over sessions that stay open.

```python
async with open_mcp_tools({"calendar": {"transport": "stdio", "command": "python", "args": ["server.py"]}}) as tools:
    graph = create_graph_agent("openai:gpt-4o-mini", tools=tools)
    tools.failed  # {} or {"calendar": "why it is missing"}
```
"""

from __future__ import annotations

from graph_agent.integrations.mcp.manager import McpTools, open_mcp_tools
from graph_agent.integrations.mcp.messages import McpCallError

__all__ = ["McpCallError", "McpTools", "open_mcp_tools"]
