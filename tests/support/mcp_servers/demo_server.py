"""An MCP server for the tests: every kind of result, and faults. Serves stdio, streamable HTTP or SSE.

Over HTTP it listens on 127.0.0.1, prints `PORT <n>` once it accepts connections, and takes any free port by default.
`STARTS_FILE` in the environment gets one line, the pid, for each start; `EFFECTS_FILE` one line for each effect.
Over HTTP, while `STATUS_FILE` holds a number and a text, every request is answered by that status and text; with
`TOKEN` set, requests without it as their bearer token are answered by 401.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Any

import mcp.types as types
from mcp.server.fastmcp import Audio, Context, FastMCP, Image
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Remembered(EventStore):
    """Gives every event an id, so that clients take a broken stream for one they may resume."""

    def __init__(self) -> None:
        self.count = 0

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self.count += 1
        return f"{stream_id}-{self.count}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        await send_callback(EventMessage(types.JSONRPCMessage(types.JSONRPCNotification(jsonrpc="2.0", method="x"))))
        return None


class Room(BaseModel):
    number: int
    sea_view: bool


class Confirmation(BaseModel):
    sure: bool


def note(variable: str, line: str) -> None:
    if path := os.environ.get(variable):
        with Path(path).open("a") as file:
            file.write(line + "\n")


def guarded(app: ASGIApp) -> ASGIApp:
    def refusal(scope: Scope) -> Response | None:
        status = Path(os.environ.get("STATUS_FILE", "/nonexistent"))
        if status.exists():
            code, text = status.read_text().split(maxsplit=1)
            return PlainTextResponse(text, int(code))
        token = os.environ.get("TOKEN")
        if token and Request(scope).headers.get("authorization") != f"Bearer {token}":
            return PlainTextResponse("who are you?", 401)
        return None

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        refused = refusal(scope) if scope["type"] == "http" else None
        await (refused or app)(scope, receive, send)

    return answer


def build(**settings: Any) -> FastMCP:
    server = FastMCP("demo", log_level="WARNING", **settings)
    tool = server.tool
    read = types.ToolAnnotations(readOnlyHint=True, title="A reader")
    again = types.ToolAnnotations(idempotentHint=True)

    @tool(annotations=read, structured_output=False)
    def pid() -> str:
        """Return the process id."""
        return str(os.getpid())

    @tool(structured_output=False)
    def key(context: Context[Any, Any, Any]) -> str:
        """Return the call's idempotency key."""
        meta = context.request_context.meta
        return str((meta.model_extra or {}).get("graph-agent/idempotency-key") if meta else None)

    @tool(name="dotted.echo", annotations=read, structured_output=False)
    def echo(text: str) -> str:
        """Return the text."""
        return text

    @tool(annotations=read, structured_output=False)
    def odd_names(config: str, runtime: str, run_manager: str, callbacks: str) -> str:
        """Take arguments that frameworks like to keep for themselves."""
        return f"{config} {runtime} {run_manager} {callbacks}"

    @tool()
    def room() -> Room:
        """Give structured content."""
        return Room(number=7, sea_view=True)

    @tool(structured_output=False)
    def room_without_text() -> types.CallToolResult:
        """Give structured content alone."""
        return types.CallToolResult(content=[], structuredContent={"number": 7, "name": "Süd"})

    @tool(structured_output=False)
    def picture() -> list[Any]:
        """Give an image among text."""
        return ["a pixel", Image(data=PIXEL, format="png")]

    @tool(structured_output=False)
    def sound() -> Audio:
        """Give audio."""
        return Audio(data=b"RIFF", format="wav")

    @tool(structured_output=False)
    def fails() -> str:
        """Fail."""
        raise ValueError("no room left")

    @tool(structured_output=False)
    async def counts(context: Context[Any, Any, Any], to: int) -> str:
        """Report progress."""
        for done in range(1, to + 1):
            await context.report_progress(done, to, f"step {done}")
        return "counted"

    @tool(structured_output=False)
    async def confirm(context: Context[Any, Any, Any]) -> str:
        """Ask the person."""
        answer = await context.elicit("Really?", Confirmation)
        return f"{answer.action} {answer.data.sure if answer.action == 'accept' else None}"

    def die(name: str, when: str) -> str:
        note("EFFECTS_FILE", f"{name} {when}")
        if when == "first" and Path(os.environ["EFFECTS_FILE"]).read_text().count(f"{name} first") > 1:
            return f"alive in {os.getpid()}"
        os._exit(9)

    @tool(structured_output=False)
    def die_writing(when: str = "always") -> str:
        """Take effect, then kill the server."""
        return die("die_writing", when)

    @tool(annotations=read, structured_output=False)
    def die_reading(when: str = "always") -> str:
        """Kill the server; with `first`, only at the first call."""
        return die("die_reading", when)

    @tool(annotations=again, structured_output=False)
    def die_idempotent(when: str = "always") -> str:
        """Kill the server; with `first`, only at the first call."""
        return die("die_idempotent", when)

    @tool(structured_output=False)
    async def hang() -> str:
        """Hang until cancelled; both are noted."""
        note("EFFECTS_FILE", "hanging")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note("EFFECTS_FILE", "cancelled")
            raise
        return "never"

    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", default="stdio", choices=["stdio", "streamable-http", "sse"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--resumable", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    note("STARTS_FILE", str(os.getpid()))
    if options.transport == "stdio":
        build().run()
        return

    import uvicorn

    store = {"event_store": Remembered(), "retry_interval": 10} if options.resumable else {}
    server = build(json_response=options.json, **store)
    app = server.streamable_http_app() if options.transport == "streamable-http" else server.sse_app()

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            sys.stdout.write(f"PORT {self.servers[0].sockets[0].getsockname()[1]}\n")
            sys.stdout.flush()

    config = uvicorn.Config(guarded(app), port=options.port, log_level="error", timeout_graceful_shutdown=1)
    Announcing(config).run()
    sys.exit(0)


if __name__ == "__main__":
    main()
