"""An MCP server over HTTP: the stock of a shop. It needs `HOST` and `PORT`; the path is `/mcp`."""

import os

from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations

STOCK = {"lamp": 12, "chair": 3, "table": 0}

server = FastMCP(
    "stock",
    host=os.environ.get("HOST", "0.0.0.0"),
    port=int(os.environ.get("PORT", "8000")),
    stateless_http=True,
    log_level="WARNING",
)


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def count(article: str) -> str:
    """Return how many of an article are in stock."""
    known = ", ".join(STOCK)
    return f"{STOCK[article]} in stock" if article in STOCK else f"There is no {article!r}; known: {known}."


if __name__ == "__main__":
    server.run("streamable-http")
