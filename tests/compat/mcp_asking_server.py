"""A server of the MCP SDK 2.x that asks the person, in both ways of that SDK: transport, and for HTTP a port."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

from pydantic import BaseModel

# Not among the project's development dependencies, which have the SDK 1.x.
sdk: Any = import_module("mcp.server.mcpserver")
resolving: Any = import_module("mcp.server.mcpserver.resolve")
server = sdk.MCPServer("asking")


class Confirmation(BaseModel):
    sure: bool


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def book(room: str, context: Any) -> str:
    """Book a room, after a question in the middle of the call."""
    answer = await context.elicit(f"Book room {room}?", Confirmation)
    return f"{answer.action}: {answer.data.sure if answer.action == 'accept' else None}"


async def confirm(room: str) -> Any:
    return resolving.Elicit(f"Reserve room {room}?", Confirmation)


async def reserve(room: str, confirmation: Any) -> str:
    """Reserve a room, after a question before the call."""
    return f"reserved {room}: {confirmation.sure}"


def house() -> str:
    """The house."""
    return "Ten rooms."


# The SDK reads the annotations, which are the classes of a package that only this script's environment has.
book.__annotations__["context"] = sdk.Context
reserve.__annotations__["confirmation"] = Annotated[Confirmation, resolving.Resolve(confirm)]
for tool in (double, book, reserve):
    server.tool()(tool)
server.resource("hotel://house", mime_type="text/plain")(house)


if __name__ == "__main__":
    transport, port = sys.argv[1], int(sys.argv[2])
    options: dict[str, Any] = {} if transport == "stdio" else {"port": port}
    if transport == "stateless":
        transport, options = "streamable-http", {**options, "stateless_http": True}
    server.run(transport, **options)
