"""Converts MCP tools to LangChain tools."""

from __future__ import annotations

import json
from base64 import b64decode
from contextvars import copy_context
from typing import Any

import mcp.types as types
from langchain_core.tools import StructuredTool
from langchain_core.utils.json_schema import dereference_refs
from langchain_mcp_adapters.tools import _convert_call_tool_result
from langgraph.config import get_stream_writer
from mcp.shared.session import ProgressFnT
from pydantic import AnyUrl, Field

from graph_agent.base._internal import telemetry
from graph_agent.base.calls import key_of_current_call
from graph_agent.base.input_ids import KEY_IN_META
from graph_agent.integrations.mcp.connections import ServerConfig
from graph_agent.integrations.mcp.elicitation import call_and_ask
from graph_agent.integrations.mcp.loop_bridge import LoopBridge
from graph_agent.integrations.mcp.server import McpServer


def progress_to_stream(server: str, tool: str) -> ProgressFnT | None:
    """Return a callback that writes a call's progress to the custom stream of the run; None outside a graph's run.

    It writes `{"type": "mcp_progress", "server", "tool", "progress", "total", "message"}`; `total` and `message` may be
    None.
    """
    try:
        write = get_stream_writer()
    except (RuntimeError, KeyError):
        # There is no runnable context, or the tool was invoked outside a graph.
        return None
    # Captured: the writer reads the graph position from the context, and progress arrives in the session's context.
    context = copy_context()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        """Write one progress message to the stream."""
        event = {"type": "mcp_progress", "server": server, "tool": tool}
        context.run(write, {**event, "progress": progress, "total": total, "message": message})

    return on_progress


# Private: the adapters' conversion of results. Their public conversion of tools uses a session of its own and drops an
# argument named `runtime`.


class McpTool(StructuredTool):
    """A `StructuredTool` whose arguments may have any name.

    LangChain injects parameters named `config` and `run_manager`, which may be arguments of a server's tool.
    """

    source: Any = Field(default=None, exclude=True, repr=False)
    """The `McpTools` list that contains the tool; None outside a list."""

    def _run(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the blocking function with all arguments, because LangChain's own method would replace some of them."""
        assert self.func is not None
        return self.func(*args, **kwargs)

    async def _arun(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the coroutine function with all arguments, because LangChain's own method would replace some of them."""
        assert self.coroutine is not None
        return await self.coroutine(*args, **kwargs)


def to_langchain_tool(server: McpServer, tool: types.Tool, bridge: LoopBridge, source: Any = None) -> McpTool:
    """Convert a server's tool to a LangChain tool that can be called from any event loop or thread.

    Its name is the server's name of the tool after the connection's `tool_prefix`. Its metadata has the server's
    annotations, and `effect`, `idempotent` and `mcp_server`. A call sends the idempotency key in the request's `_meta`,
    under `KEY_IN_META`. The content of a result becomes content blocks, its structured content the artifact; an error
    result raises `ToolException`. A blocking call refuses the server's questions.

    Args:
        server: The server.
        tool: The tool's definition.
        bridge: Runs code on the event loop of the server's session.
        source: The `McpTools` list that will contain the tool.
    """

    async def call(**arguments: Any) -> Any:
        """Call the tool, with interrupts for the server's questions, and return content and artifact."""
        on_progress, meta = progress_to_stream(server.config.name, tool.name), _meta()
        return _convert(await call_and_ask(server, bridge, tool, arguments, on_progress, meta))

    def call_blocking(**arguments: Any) -> Any:
        """Call the tool, block until it has ended, and return content and artifact; questions of the server are
        refused.
        """
        on_progress, meta = progress_to_stream(server.config.name, tool.name), _meta()
        return _convert(bridge.run_blocking(lambda: server.call(tool, arguments, on_progress, meta)))

    # Providers differ in which references they accept.
    schema = dereference_refs(tool.inputSchema) if "$ref" in tool.inputSchema else tool.inputSchema
    return McpTool(
        name=server.config.tool_prefix + tool.name,
        description=tool.description or tool.title or "",
        # LangChain and providers require `properties`, which servers omit for a tool without arguments, or refer to.
        args_schema={"type": "object", "properties": {}, **schema},
        func=call_blocking,
        coroutine=call,
        response_format="content_and_artifact",
        metadata=_metadata(server.config, tool),
        source=source,
    )


def _meta() -> dict[str, Any] | None:
    """Return the `_meta` for a request of the current call; None if it has neither an idempotency key nor a trace."""
    key = key_of_current_call()
    meta: dict[str, Any] = {KEY_IN_META: key} if key is not None else {}
    if telemetry.observer is not None:
        telemetry.observer.inject(meta)
    return meta or None


def _metadata(config: ServerConfig, tool: types.Tool) -> dict[str, Any]:
    """Return the metadata of the LangChain tool for a tool of an MCP server.

    It has the server's annotations, such as `readOnlyHint`, without the marks of the agent; `_meta` if the server gave
    it; and the marks that this package reads: `effect` (`"read"` for a tool marked as read-only, else `"write"`),
    `idempotent`, `source` and `sinks` of the connection, and `mcp_server`, the server's name.
    """
    annotations = tool.annotations or types.ToolAnnotations()
    metadata = annotations.model_dump(exclude_none=True)
    # These marks are the agent's: a server may not decide on its own calls, nor call itself trusted.
    for name in ("approve", "source", "sinks"):
        metadata.pop(name, None)
    if config.source != "untrusted":
        metadata["source"] = config.source
    if sinks := config.sinks.get(tool.name):
        metadata["sinks"] = sinks
    if tool.meta is not None:
        metadata["_meta"] = tool.meta
    return {
        **metadata,
        "effect": "read" if annotations.readOnlyHint else "write",
        "idempotent": bool(annotations.idempotentHint),
        "mcp_server": config.name,
    }


def _convert(result: types.CallToolResult) -> tuple[Any, Any]:
    """Return content and artifact of a result; raise `ToolException` for an error result.

    The content is a list of content blocks, the artifact has the structured content, or is None. Structured content is
    also added to the blocks as JSON text if the result has no text of its own, or only blank text; of an object with
    the single key `result`, only its value.
    """
    contents = [_for_models(content) for content in result.content]
    has_text = any(isinstance(content, types.TextContent) and content.text.strip() for content in result.content)
    if result.structuredContent is not None and not has_text:
        # Added as text, since the artifact is not shown to the model.
        value = result.structuredContent
        # The SDKs wrap values that are not objects in {"result": …}.
        value = value["result"] if list(value) == ["result"] else value
        text = json.dumps(value, ensure_ascii=False)
        contents.append(types.TextContent(type="text", text=text))
    return _convert_call_tool_result(result.model_copy(update={"content": contents}))


def _for_models(content: types.ContentBlock) -> types.ContentBlock:
    """Return a content block of a tool's result in a form that models accept.

    A link to a resource becomes text (its fields as JSON), an embedded resource of a text type becomes its text, and
    audio becomes an embedded file; text, images and other files are returned unchanged.
    """
    if isinstance(content, types.ResourceLink):
        # The adapters make it a file with a URL, which only the server can open, and keep neither name nor description.
        return types.TextContent(type="text", text=content.model_dump_json(exclude_none=True, exclude={"meta"}))
    if isinstance(content, types.EmbeddedResource) and (content.resource.mimeType or "text/").startswith("text/"):
        return types.TextContent(type="text", text=resource_text(content.resource))
    # Converted, since the adapters refuse audio and LangChain's tool messages accept no audio block.
    if not isinstance(content, types.AudioContent):
        return content
    blob = types.BlobResourceContents(uri=AnyUrl("audio:content"), mimeType=content.mimeType, blob=content.data)
    return types.EmbeddedResource(type="resource", resource=blob)


def resource_text(content: types.TextResourceContents | types.BlobResourceContents) -> str:
    """Return a resource as text: its own text, or that decoded from a blob of a text type.

    A blob of another type is described by its address, type and size.
    """
    if isinstance(content, types.TextResourceContents):
        return content.text
    kind = content.mimeType or "unknown type"
    if kind.startswith("text/"):
        return b64decode(content.blob).decode(errors="replace")
    size = len(content.blob) * 3 // 4 - content.blob.count("=")
    return f"[{content.uri}: {kind}, {size} bytes, which are not text]"
