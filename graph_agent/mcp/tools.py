"""An MCP tool as a LangChain tool."""

from __future__ import annotations

import json
from typing import Any

import mcp.types as types
from langchain_core.tools import StructuredTool

# Private, and the whole of what the adapters know about results; their public conversion ties it to a session of
# their own and swallows an argument that is named `runtime`.
from langchain_mcp_adapters.tools import _convert_call_tool_result
from pydantic import AnyUrl, Field

from graph_agent.mcp.hop import Hop
from graph_agent.mcp.progress import progress_to_stream
from graph_agent.mcp.server import Server
from graph_agent.tools.idempotency import key_of_current_call

KEY_IN_META = "graph-agent/idempotency-key"
"""Name of the idempotency key in a call's `_meta`."""


class McpTool(StructuredTool):
    """A structured tool whose arguments may have any name.

    LangChain fills parameters called `config` and `run_manager` itself; a server's tool may have its own.
    """

    source: Any = Field(default=None, exclude=True, repr=False)
    """The list of tools that it is of, which changes with what its server lists; None outside a list."""

    def _run(self, /, *args: Any, **kwargs: Any) -> Any:
        assert self.func is not None
        return self.func(*args, **kwargs)

    async def _arun(self, /, *args: Any, **kwargs: Any) -> Any:
        assert self.coroutine is not None
        return await self.coroutine(*args, **kwargs)


def to_langchain_tool(server: Server, tool: types.Tool, hop: Hop, source: Any = None) -> McpTool:
    """Make the tool that calls `tool` on `server`, from any event loop or, synchronously, from any other thread.

    The server finds the idempotency key of an agent's call in the request's `_meta`, under `KEY_IN_META`.
    The name is the server's, behind the connection's `tool_prefix`. The metadata holds the server's annotations and
    our marks: `effect`, `idempotent`, `mcp_server`. A result's content becomes content blocks, its structured content
    the artifact; a result that is an error raises `ToolException`. `source` is the list that the tool is put into.
    """

    async def call(**arguments: Any) -> Any:
        on_progress, meta = progress_to_stream(server.config.name, tool.name), _meta()
        return _convert(await hop.run(lambda: server.call(tool, arguments, on_progress, meta)))

    def call_blocking(**arguments: Any) -> Any:
        on_progress, meta = progress_to_stream(server.config.name, tool.name), _meta()
        return _convert(hop.run_blocking(lambda: server.call(tool, arguments, on_progress, meta)))

    return McpTool(
        name=server.config.tool_prefix + tool.name,
        description=tool.description or tool.title or "",
        # Servers leave `properties` out of the schema of a tool without arguments; LangChain and providers need it.
        args_schema={"type": "object", "properties": {}, **tool.inputSchema},
        func=call_blocking,
        coroutine=call,
        response_format="content_and_artifact",
        metadata=_metadata(server.config.name, tool),
        source=source,
    )


def _meta() -> dict[str, Any] | None:
    """What is told of a call beside its arguments."""
    key = key_of_current_call()
    return {KEY_IN_META: key} if key is not None else None


def _metadata(server: str, tool: types.Tool) -> dict[str, Any]:
    annotations = tool.annotations or types.ToolAnnotations()
    metadata = annotations.model_dump(exclude_none=True)
    if tool.meta is not None:
        metadata["_meta"] = tool.meta
    return {
        **metadata,
        "effect": "read" if annotations.readOnlyHint else "write",
        "idempotent": bool(annotations.idempotentHint),
        "mcp_server": server,
    }


def _convert(result: types.CallToolResult) -> tuple[Any, Any]:
    """Turn a result into content and artifact. Raises `ToolException` for a result that is an error."""
    contents = [_audio_as_file(content) for content in result.content]
    said = any(isinstance(content, types.TextContent) and content.text.strip() for content in contents)
    if result.structuredContent is not None and not said:
        # The artifact is not shown to the model.
        value = result.structuredContent
        # The SDKs' wrapping of what is no object.
        value = value["result"] if list(value) == ["result"] else value
        text = json.dumps(value, ensure_ascii=False)
        contents.append(types.TextContent(type="text", text=text))
    return _convert_call_tool_result(result.model_copy(update={"content": contents}))


def _audio_as_file(content: types.ContentBlock) -> types.ContentBlock:
    # The adapters refuse audio, and LangChain's tool messages take no audio block: it goes as a file of its type.
    if not isinstance(content, types.AudioContent):
        return content
    blob = types.BlobResourceContents(uri=AnyUrl("audio:content"), mimeType=content.mimeType, blob=content.data)
    return types.EmbeddedResource(type="resource", resource=blob)
