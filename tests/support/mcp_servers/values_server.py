"""An MCP server over stdio whose tools return values of every shape, for the tests."""

from __future__ import annotations

from typing import Any

from mcp.server.fastmcp import FastMCP
from mcp.types import CallToolResult, TextContent


def build() -> FastMCP:
    """Return the server."""
    server = FastMCP("values", log_level="WARNING")

    @server.tool()
    def mapping() -> dict[str, Any]:
        """Give an object."""
        return {"a": [1, "1"]}

    @server.tool()
    def numbers() -> list[int]:
        """Give a list, which the SDK wraps and cuts into blocks."""
        return [1, 2]

    @server.tool()
    def none_at_all() -> list[int]:
        """Give an empty list, which the SDK sends without text."""
        return []

    @server.tool()
    def number() -> int:
        """Give a number, which the SDK wraps."""
        return 3

    @server.tool()
    def digits() -> str:
        """Give text, which the SDK wraps."""
        return "3"

    @server.tool(structured_output=False)
    def json_text() -> str:
        """Give JSON as text alone."""
        return '{"a": 1}'

    @server.tool(structured_output=False)
    def thing() -> Any:
        """Give an object without a text of its own, of which the SDK sends the address."""
        return object()

    @server.tool(structured_output=False)
    def things() -> Any:
        """Give such an object in a dict."""
        return {"a": object()}

    @server.tool(structured_output=False)
    def prose() -> CallToolResult:
        """Give an object and a text about it."""
        return CallToolResult(
            content=[TextContent(type="text", text="Four rooms.")], structuredContent={"rooms": 4, "result": None}
        )

    @server.tool(structured_output=False)
    def own_result() -> CallToolResult:
        """Give an object whose only field is called as the SDK's wrapping."""
        return CallToolResult(content=[TextContent(type="text", text='{"result": 5}')], structuredContent={"result": 5})

    return server


if __name__ == "__main__":
    build().run()
