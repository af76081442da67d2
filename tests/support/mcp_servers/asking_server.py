"""An MCP server that asks the person during calls. Serves stdio, streamable HTTP or SSE.

Over HTTP it listens on the free port of 127.0.0.1 that it prints as `PORT <n>`. `EFFECTS_FILE` in the environment gets
one line for each effect.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import mcp.types as types
from mcp.server.fastmcp import Context, FastMCP
from mcp.shared.exceptions import UrlElicitationRequiredError
from pydantic import BaseModel

Ctx = Context[Any, Any, Any]
server = FastMCP("asking", log_level="WARNING")


class Confirmation(BaseModel):
    sure: bool


class Guest(BaseModel):
    name: str
    nights: int = 1


def noted(line: str) -> bool:
    path = Path(os.environ.get("EFFECTS_FILE", ""))
    return path.is_file() and line in path.read_text().splitlines()


def note(line: str) -> None:
    if path := os.environ.get("EFFECTS_FILE"):
        with Path(path).open("a") as file:
            file.write(line + "\n")


@server.tool(structured_output=False)
async def book(room: str, context: Ctx) -> str:
    """Book a room."""
    note(f"begin {room}")
    try:
        answer = await context.elicit(f"Book room {room}?", Confirmation)
    except asyncio.CancelledError:
        note(f"cancelled {room}")
        raise
    if answer.action != "accept" or not answer.data.sure:
        return f"{answer.action}: not booked"
    note(f"booked {room}")
    return f"booked {room}"


@server.tool(annotations=types.ToolAnnotations(readOnlyHint=True), structured_output=False)
async def look(room: str, context: Ctx) -> str:
    """Look at a room."""
    note(f"look {room}")
    first = await context.elicit(f"Look at {room}?", Confirmation)
    second = await context.elicit("Who asks?", Guest)
    if first.action != "accept" or second.action != "accept":
        return f"{first.action} {second.action}"
    return f"{room} for {second.data.name}, {second.data.nights} night(s)"


@server.tool(structured_output=False)
async def swap(room: str, context: Ctx) -> str:
    """Swap a room, after the same question twice."""
    note(f"begin {room}")
    answers = [await context.elicit("Sure?", Confirmation) for _ in range(2)]
    note(f"swapped {room}")
    return " ".join(str(each.data.sure) if each.action == "accept" else each.action for each in answers)


@server.tool(structured_output=False)
async def furnish(context: Ctx) -> str:
    """Ask with fields of each kind."""
    fields: dict[str, Any] = {
        "name": {"type": "string", "title": "Guest", "description": "As in the passport."},
        "nights": {"type": "integer", "default": 2},
        "price": {"type": "number"},
        "breakfast": {"type": "boolean", "default": True},
        "bed": {"type": "string", "enum": ["twin", "king"], "enumNames": ["Two beds", "One bed"]},
        "extras": {"type": "array", "items": {"type": "string", "enum": ["crib", "desk", "late"]}},
    }
    schema = {"type": "object", "properties": fields, "required": ["name", "nights", "bed"]}
    answer = await context.session.elicit_form("How?", schema, related_request_id=context.request_id)
    return f"{answer.action} {json.dumps(answer.content, sort_keys=True)}"


@server.tool(structured_output=False)
async def pay(context: Ctx) -> str:
    """Pay on a page."""
    answer = await context.elicit_url("Enter your card.", "https://pay.example/1", "e1")
    return f"pay: {answer.action}"


@server.tool(structured_output=False)
async def connect() -> str:
    """Need an account that the person connects first."""
    if not noted("connected"):
        note("connected")
        params = types.ElicitRequestURLParams(
            mode="url", message="Connect your account.", url="https://account.example/2", elicitationId="e2"
        )
        raise UrlElicitationRequiredError([params])
    return "connected"


@server.tool(structured_output=False)
async def wait(line: str) -> str:
    """Wait for an effect."""
    note("waiting")
    while not noted(line):
        await asyncio.sleep(0.01)
    return "waited"


@server.tool(structured_output=False)
async def summarise(text: str, context: Ctx, times: int = 1) -> str:
    """Summarise with the client's model."""
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    reply = await context.session.create_message([message], max_tokens=100_000, system_prompt="Be short.")
    for _ in range(times - 1):
        reply = await context.session.create_message([message], max_tokens=100_000, system_prompt="Be short.")
    return f"{reply.content.text} ({reply.stopReason})" if isinstance(reply.content, types.TextContent) else "?"


@server.tool(structured_output=False)
async def summarise_and_ask(text: str, context: Ctx) -> str:
    """Summarise, then ask the person."""
    summary = await summarise(text, context)
    answer = await context.elicit(f"Send {summary}?", Confirmation)
    return f"{summary}: {answer.action}"


@server.tool(structured_output=False)
async def roots(context: Ctx) -> str:
    """Return the client's folders."""
    return " ".join(str(root.uri) for root in (await context.session.list_roots()).roots)


@server.resource("hotel://rooms/{room}")
def room(room: str) -> str:
    """A room."""
    return f"Room {room} has a view."


@server.resource("hotel://house", mime_type="text/plain")
def house() -> str:
    """The house."""
    return "Ten rooms."


@server.resource("hotel://picture", mime_type="image/png")
def picture() -> bytes:
    """A picture."""
    return b"12345678"


@server.prompt()
def greet(guest: str) -> str:
    """Greet a guest."""
    return f"Write a greeting for {guest}."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", default="stdio")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.transport == "stdio":
        server.run()
        return
    import uvicorn

    listening = socket.create_server(("127.0.0.1", options.port))
    sys.stdout.write(f"PORT {listening.getsockname()[1]}\n")
    sys.stdout.flush()
    app = server.streamable_http_app() if options.transport == "streamable-http" else server.sse_app()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


if __name__ == "__main__":
    main()
