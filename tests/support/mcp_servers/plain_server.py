"""An MCP server over stdio without the conveniences of the SDK, for the tests: it sends its schemas as they are."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from typing import Any

import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.stdio import stdio_server
from pydantic import AnyUrl

SEARCH = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "referring": {"$ref": "#/$defs/Search", "$defs": {"Search": SEARCH}},
    "dangling": {"type": "object", "properties": {"word": {"$ref": "#/$defs/Word"}}},
    "remote": {"type": "object", "properties": {"word": {"$ref": "https://schemas.example/word.json"}}},
    "task": {"type": "object"},
    "links": {"type": "object"},
    "files": {"type": "object"},
}
TEXT = "städte;1"
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
    if name == "files":
        return [file("text/csv"), file(None)]
    return [LINK] if name == "links" else [types.TextContent(type="text", text=json.dumps(arguments))]


def file(mime_type: str | None) -> types.EmbeddedResource:
    blob = types.BlobResourceContents(uri=ADDRESS, mimeType=mime_type, blob=b64encode(TEXT.encode()).decode())
    return types.EmbeddedResource(type="resource", resource=blob)


async def list_resources() -> list[types.Resource]:
    return [types.Resource(uri=ADDRESS, name="report")]


async def read_resource(uri: AnyUrl) -> list[ReadResourceContents]:
    return [ReadResourceContents(content=TEXT.encode(), mime_type="text/csv")]


async def main() -> None:
    server.list_tools()(list_tools)  # type: ignore[no-untyped-call]  # the SDK's decorators have no types
    server.call_tool(validate_input=False)(call_tool)
    server.list_resources()(list_resources)  # type: ignore[no-untyped-call]  # as above
    server.read_resource()(read_resource)  # type: ignore[no-untyped-call]  # as above
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
