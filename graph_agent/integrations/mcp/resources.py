"""Offers the resources and prompts of a server as tools that the model calls on demand."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import mcp.types as types
from langchain_core.tools import ToolException
from mcp import ClientSession, McpError
from pydantic import AnyUrl, ValidationError

from graph_agent.integrations.mcp.client_session import read_pages
from graph_agent.integrations.mcp.loop_bridge import LoopBridge
from graph_agent.integrations.mcp.server import McpServer
from graph_agent.integrations.mcp.tools import McpTool, resource_text

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_URI: dict[str, Any] = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "Address of the resource."}},
    "required": ["uri"],
}
_PROMPT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Name of the prompt."},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Its arguments."},
    },
    "required": ["name"],
}


def listing_tools(server: McpServer, bridge: LoopBridge, source: Any) -> list[McpTool]:
    """Return the tools that list and read a server's resources and prompts, as far as configured and supported.

    Each name begins with the connection's `tool_prefix`, or with `<server>_` without one.

    Args:
        server: The server, whose first session must be open.
        bridge: Runs code on the event loop of the server's session.
        source: The `McpTools` list that will contain the tools.
    """
    config, capabilities = server.config, server.capabilities
    prefix = config.tool_prefix or f"{config.name}_"
    declared = {} if config.source == "untrusted" else {"source": config.source}

    def tool(name: str, description: str, schema: dict[str, Any], work: _Work) -> McpTool:
        """Return a tool that only reads, whose calls perform `work` with a session of the server, also blocking.

        The prefix precedes its name, and its description names the server.
        """

        async def call(**arguments: Any) -> str:
            """Perform the work on the event loop of the session."""
            return await bridge.run(lambda: _request(server, prefix + name, work, arguments))

        def call_blocking(**arguments: Any) -> str:
            """Perform the work on the event loop of the session, and block until it is done."""
            return bridge.run_blocking(lambda: _request(server, prefix + name, work, arguments))

        return McpTool(
            name=prefix + name,
            description=f"{description} of the MCP server {config.name!r}.",
            args_schema=schema,
            func=call_blocking,
            coroutine=call,
            metadata={"effect": "read", "idempotent": True, "mcp_server": config.name, **declared},
            source=source,
        )

    tools: list[McpTool] = []
    if config.resources and capabilities.resources is not None:
        tools.append(tool("list_resources", "List the resources", _NO_ARGUMENTS, _list_resources))
        tools.append(tool("read_resource", "Read a resource", _URI, _read_resource))
    if config.prompts and capabilities.prompts is not None:
        tools.append(tool("list_prompts", "List the prompts", _NO_ARGUMENTS, _list_prompts))
        tools.append(tool("get_prompt", "Return the text of a prompt", _PROMPT, _get_prompt))
    return tools


_Work = Callable[[ClientSession, dict[str, Any]], Awaitable[str]]
"""Sends requests over a session with the arguments of a call, and returns the text for the model."""


async def _request(server: McpServer, name: str, work: _Work, arguments: dict[str, Any]) -> str:
    """Return the result of a tool's work on a session of the server.

    Raises `ToolException` if the server answers with an error, or an argument is invalid, and `McpCallError` if no
    answer will arrive.

    Args:
        server: The server.
        name: Name of the tool, for errors.
        work: Sends the requests; receives the session and the arguments.
        arguments: Arguments of the tool.
    """
    try:
        return await server.request(name, lambda session: work(session, arguments))
    except McpError as error:
        raise ToolException(f"MCP server {server.config.name!r}: {error}") from error
    except ValidationError as error:
        raise ToolException(f"MCP server {server.config.name!r}: {error.errors()[0]['msg']}") from error


async def _list_resources(session: ClientSession, arguments: dict[str, Any]) -> str:
    """Return the resources and resource templates of a server, one JSON object a line; `There are none.` without any.

    A server that has no list of templates has none. Raises `McpError` if the server answers with another error.

    Args:
        session: The session with the server.
        arguments: Not used; for the signature of the offered tools.
    """
    listed: list[Any] = [each async for page in read_pages(session.list_resources) for each in page.resources]
    try:
        pages = read_pages(session.list_resource_templates)
        listed += [each async for page in pages for each in page.resourceTemplates]
    except McpError as error:
        # Templates are optional, and the capability does not state whether a server has them.
        if error.error.code != types.METHOD_NOT_FOUND:
            raise
    return _as_lines(listed, {"uri", "uriTemplate", "name", "description", "mimeType", "size"})


async def _read_resource(session: ClientSession, arguments: dict[str, Any]) -> str:
    """Return the resource at `arguments["uri"]` as text; each part that is not text is a line with its address, type
    and size.
    """
    result = await session.read_resource(AnyUrl(str(arguments["uri"])))
    return "\n".join(resource_text(content) for content in result.contents)


async def _list_prompts(session: ClientSession, arguments: dict[str, Any]) -> str:
    """Return the prompts of a server, one JSON object a line; without any, `There are none.`.

    `arguments` are not used.
    """
    prompts = [each async for page in read_pages(session.list_prompts) for each in page.prompts]
    return _as_lines(prompts, {"name", "description", "arguments"})


async def _get_prompt(session: ClientSession, arguments: dict[str, Any]) -> str:
    """Return the messages of the prompt `arguments["name"]` as text, each after its role, with blank lines in between.

    `arguments["arguments"]` are the values of the prompt's parameters, which are sent as texts.
    """
    given = arguments.get("arguments") or {}
    result = await session.get_prompt(str(arguments["name"]), {name: str(value) for name, value in given.items()})
    return "\n\n".join(f"{message.role}: {_block_text(message.content)}" for message in result.messages)


def _as_lines(items: list[Any], keys: set[str]) -> str:
    """Return the fields `keys` of each item as JSON, one item a line, without empty fields; `There are none.` without
    items.
    """
    listed = [item.model_dump(mode="json", include=keys, exclude_none=True) for item in items]
    return "\n".join(json.dumps(each, ensure_ascii=False) for each in listed) or "There are none."


def _block_text(block: types.ContentBlock) -> str:
    """Return a content block as text; one without text as its type in brackets."""
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.EmbeddedResource):
        return resource_text(block.resource)
    return f"[{block.type}]"
