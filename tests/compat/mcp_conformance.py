"""Runs MCP's public conformance suite and its inspector, from npm, against this package's servers.

Most scenarios of the suite want a server with certain tools, resources and prompts. They are those of `fixture`, behind
the server's `/mcp`, in place of an agent.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from mcp import types
from mcp.server.fastmcp import Context, FastMCP
from pydantic import AnyUrl

from graph_agent.server import create_app, of_file
from tests.interfaces.server.process import PARROT, ROOT
from tests.support.a2a_servers import serving

PACKAGES = ["node@22", "@modelcontextprotocol/conformance@0.1.16", "@modelcontextprotocol/inspector@0"]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SOUND = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
PASSED = 40
"""Checks of the suite's server scenarios that pass; none fails."""
_TOTAL = re.compile(r"Total: (\d+) passed, (\d+) failed")


def fixture() -> Any:
    """The SDK's server with what the scenarios want."""
    server = FastMCP("fixture", log_level="WARNING")

    def text(value: str) -> types.TextContent:
        return types.TextContent(type="text", text=value)

    def embedded(uri: str, mime_type: str, content: str) -> types.EmbeddedResource:
        resource = types.TextResourceContents(uri=AnyUrl(uri), mimeType=mime_type, text=content)
        return types.EmbeddedResource(type="resource", resource=resource)

    image = types.ImageContent(type="image", data=PIXEL, mimeType="image/png")

    @server.tool("test_simple_text", description="Text.", structured_output=False)
    async def simple_text() -> Any:
        return text("This is a simple text response for testing.")

    @server.tool("test_image_content", description="An image.", structured_output=False)
    async def image_content() -> Any:
        return image

    @server.tool("test_audio_content", description="A sound.", structured_output=False)
    async def audio_content() -> Any:
        return types.AudioContent(type="audio", data=SOUND, mimeType="audio/wav")

    @server.tool("test_embedded_resource", description="A resource.", structured_output=False)
    async def embedded_resource() -> Any:
        return embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")

    @server.tool("test_multiple_content_types", description="Several contents.", structured_output=False)
    async def multiple() -> Any:
        mixed = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
        return [text("Multiple content types test:"), image, mixed]

    @server.tool("test_tool_with_logging", description="Three log messages.", structured_output=False)
    async def logging(ctx: Context[Any, Any, Any]) -> Any:
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(line)
            await asyncio.sleep(0.05)
        return text("Logged.")

    @server.tool("test_error_handling", description="Fails.", structured_output=False)
    async def error_handling() -> Any:
        raise ValueError("This tool intentionally returns an error for testing")

    @server.tool("test_tool_with_progress", description="Progress.", structured_output=False)
    async def progress(ctx: Context[Any, Any, Any]) -> Any:
        for number in (0, 50, 100):
            await ctx.report_progress(number, 100)
            await asyncio.sleep(0.05)
        return text("Done.")

    @server.tool("test_sampling", description="Asks the client's model.", structured_output=False)
    async def sampling(prompt: str, ctx: Context[Any, Any, Any]) -> Any:
        message = types.SamplingMessage(role="user", content=text(prompt))
        reply = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
        return text(f"LLM response: {getattr(reply.content, 'text', '')}")

    async def elicited(ctx: Context[Any, Any, Any], message: str, **properties: Any) -> types.TextContent:
        schema = {"type": "object", "properties": properties, "required": []}
        answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
        return text(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")

    @server.tool("test_elicitation", description="Asks the user.", structured_output=False)
    async def elicitation(message: str, ctx: Context[Any, Any, Any]) -> Any:
        return await elicited(ctx, message, username={"type": "string"}, email={"type": "string"})

    @server.tool("test_elicitation_sep1034_defaults", description="Asks with defaults.", structured_output=False)
    async def defaults(ctx: Context[Any, Any, Any]) -> Any:
        return await elicited(
            ctx,
            "Check the values.",
            name={"type": "string", "default": "John Doe"},
            age={"type": "integer", "default": 30},
            score={"type": "number", "default": 95.5},
            status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            verified={"type": "boolean", "default": True},
        )

    @server.tool("test_elicitation_sep1330_enums", description="Asks with choices.", structured_output=False)
    async def enums(ctx: Context[Any, Any, Any]) -> Any:
        options = [f"option{number}" for number in (1, 2, 3)]
        titled = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]
        return await elicited(
            ctx,
            "Choose.",
            untitledSingle={"type": "string", "enum": options},
            titledSingle={"type": "string", "oneOf": titled},
            legacyEnum={"type": "string", "enum": options, "enumNames": ["Option 1", "Option 2", "Option 3"]},
            untitledMulti={"type": "array", "items": {"type": "string", "enum": options}},
            titledMulti={"type": "array", "items": {"anyOf": titled}},
        )

    @server.resource("test://static-text", description="Text.", mime_type="text/plain")
    async def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", description="An image.", mime_type="image/png")
    async def static_binary() -> bytes:
        return b"\x89PNG"

    @server.resource("test://template/{id}/data", description="Data.", mime_type="application/json")
    async def template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    def prompt_of(*contents: Any) -> list[Any]:
        return [{"role": "user", "content": content} for content in contents]

    @server.prompt("test_simple_prompt", description="A prompt.")
    async def simple_prompt() -> Any:
        return prompt_of(text("This is a simple prompt for testing."))

    @server.prompt("test_prompt_with_arguments", description="A prompt with arguments.")
    async def with_arguments(arg1: str, arg2: str) -> Any:
        return prompt_of(text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))

    @server.prompt("test_prompt_with_embedded_resource", description="A prompt with a resource.")
    async def with_resource(resourceUri: str) -> Any:  # noqa: N803 - the suite's name
        resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return prompt_of(resource, text("Please process the embedded resource above."))

    @server.prompt("test_prompt_with_image", description="A prompt with an image.")
    async def with_image() -> Any:
        return prompt_of(image, text("Please analyze the image above."))

    async def nothing(*_: Any) -> None: ...

    inner: Any = server._mcp_server
    inner.set_logging_level()(nothing)
    inner.subscribe_resource()(nothing)
    inner.unsubscribe_resource()(nothing)

    @server.completion()  # type: ignore[no-untyped-call,untyped-decorator]  # the SDK has no types for it
    async def complete(*_: Any) -> types.Completion:
        return types.Completion(values=["paris", "park", "party"])

    return inner


def faults(folder: Path) -> dict[str, list[str]]:
    """What differs from the expected results, by program."""
    if shutil.which("npm") is None:
        return {"MCP conformance": ["npm is not installed; install Node.js 20 or newer."]}
    folder.mkdir()
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *PACKAGES], check=True, cwd=folder)
    return {"MCP conformance": _conformance(folder), "MCP inspector": _inspector(folder)}


def _conformance(folder: Path) -> list[str]:
    app = create_app(of_file(ROOT / "examples/hotel/agent.yaml"), db="memory:")
    replaced = patch("graph_agent.interfaces.server.mcp.mount.sdk_server", lambda agent: fixture())
    with replaced, serving(lambda url: app) as url:
        output = _run(folder, "conformance", "server", "--url", f"{url}/mcp")
    found = _TOTAL.search(output)
    if found is not None and (int(found[1]), int(found[2])) == (PASSED, 0):
        return []
    return [line for line in output.splitlines() if line.startswith(("✗", "Total:"))] or [output[-2000:]]


def _inspector(folder: Path) -> list[str]:
    (folder / "agent.yaml").write_text(yaml.safe_dump({**PARROT, "db": "memory:"}))
    server = [sys.executable, "-m", "graph_agent.cli", "mcp"]
    variables = ["-e", f"PYTHONPATH={ROOT}", "-e", f"GRAPH_AGENT_CONFIG={folder / 'agent.yaml'}"]
    call = ["--method", "tools/call", "--tool-name", "parrot", "--tool-arg", "input=hello"]
    output = _run(folder, "mcp-inspector", "--cli", *variables, *server, *call)
    return [] if '"answer": "You said: hello"' in output else [output[-2000:]]


def _run(folder: Path, *command: str) -> str:
    programs = folder / "node_modules" / ".bin"
    done = subprocess.run(
        [str(programs / "node"), str((programs / command[0]).resolve()), *command[1:]],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr
