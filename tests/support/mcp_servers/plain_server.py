"""An MCP server over stdio without the conveniences of the SDK, for the tests: it sends its schemas as they are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from pydantic import AnyUrl

SEARCH = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "referring": {"$ref": "#/$defs/Search", "$defs": {"Search": SEARCH}},
    "dangling": {"type": "object", "properties": {"word": {"$ref": "#/$defs/Word"}}},
    "remote": {"type": "object", "properties": {"word": {"$ref": "https://schemas.example/word.json"}}},
    "task": {"type": "object"},
    "links": {"type": "object"},
}
ADDRESS = AnyUrl("plain://report")
LINK = types.ResourceLink(
    type="resource_link", uri=ADDRESS, name="report", description="Of today.", mimeType="text/plain"
)
server: Server[Any, Any] = Server("plain")


async def list_tools() -> list[types.Tool]:
    required = types.ToolExecution(taskSupport="required")
    return [
        types.Tool(name=name, inputSchema=schema, execution=required if name == "task" else None)
        for name, schema in SCHEMAS.items()
    ]


async def call_tool(name: str, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    return [LINK] if name == "links" else [types.TextContent(type="text", text=json.dumps(arguments))]


async def list_resources() -> list[types.Resource]:
    return [types.Resource(uri=ADDRESS, name="report")]


async def main() -> None:
    server.list_tools()(list_tools)  # type: ignore[no-untyped-call]  # the SDK's decorators have no types
    server.call_tool(validate_input=False)(call_tool)
    server.list_resources()(list_resources)  # type: ignore[no-untyped-call]  # as above
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
