"""An MCP server over stdio whose one tool has an output schema that its result takes years to be checked against."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

server: Server[Any, Any] = Server("slow-schema")
WORD = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}}


@server.list_tools()  # type: ignore[no-untyped-call,untyped-decorator]  # it has no types
async def tools() -> list[types.Tool]:
    """The one tool."""
    nothing = {"type": "object", "properties": {}}
    return [types.Tool(name="word", description="A word.", inputSchema=nothing, outputSchema=WORD)]


@server.call_tool()  # type: ignore[untyped-decorator]  # it has no types
async def call(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
    """A result slow to validate; it is complete, so that the server itself does not validate it."""
    return types.CallToolResult(
        content=[types.TextContent(type="text", text="said")], structuredContent={"word": "a" * 5000}
    )


async def main() -> None:
    """Serve until the client is gone."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
