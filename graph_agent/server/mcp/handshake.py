"""Serves clients that begin with a handshake (MCP 2024-11-05 to 2025-11-25), with the server of the SDK 1.x."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from mcp import McpError, types
from mcp.server.lowlevel import Server
from starlette.requests import HTTPConnection

from graph_agent.server.admission.gate import Caller, admitted_caller
from graph_agent.server.mcp.agent_tool import AgentTool, Ask, ToolCall
from graph_agent.server.mcp.questions import Form

_RESOURCE_NOT_FOUND = -32002


def offers_forms(elicitation: Any) -> bool:
    """Whether a client shows forms, according to its capability `elicitation`; without modes, it does."""
    return isinstance(elicitation, Mapping) and ("form" in elicitation or "url" not in elicitation)


def sdk_server(agent: AgentTool) -> Server[Any, Any]:
    """Return the SDK's server of an agent."""
    server: Server[Any, Any] = Server(agent.host.source.name, metadata.version("graph-agent"))

    def caller() -> Caller:
        request = server.request_context.request
        return admitted_caller(request) if isinstance(request, HTTPConnection) else Caller("")

    async def report(progress: float, text: str) -> None:
        context = server.request_context
        token = context.meta.progressToken if context.meta is not None else None
        if token is not None:
            await context.session.send_progress_notification(
                token, progress, message=text, related_request_id=str(context.request_id)
            )

    def ask() -> Ask | None:
        context = server.request_context
        client = context.session.client_params
        elicitation = client.capabilities.elicitation if client is not None else None
        if elicitation is None or not offers_forms(elicitation.model_dump(exclude_none=True)):
            return None

        async def elicit(session_id: str, forms: Mapping[str, Form]) -> Mapping[str, Any]:
            responses: dict[str, Any] = {}
            for key, form in forms.items():
                try:
                    response = await context.session.elicit_form(
                        form["message"], form["requestedSchema"], related_request_id=context.request_id
                    )
                except McpError:
                    break  # the client could not ask
                if response.action == "cancel":
                    break
                responses[key] = response.model_dump(exclude_none=True)
            return responses

        return elicit

    async def call_tool(request: types.CallToolRequest) -> types.ServerResult:
        context = server.request_context
        http = context.request
        call = ToolCall(
            request.params.arguments or {},
            caller(),
            report,
            ask(),
            context.meta.model_dump() if context.meta is not None else {},
            agent.host.credentials_of(http) if isinstance(http, HTTPConnection) else {},
        )
        return types.ServerResult(await agent.call(request.params.name, call))

    async def list_tools(_: types.ListToolsRequest) -> types.ServerResult:
        return types.ServerResult(types.ListToolsResult(tools=[agent.definition]))

    async def list_resources(request: types.ListResourcesRequest) -> types.ServerResult:
        cursor = request.params.cursor if request.params is not None else None
        return types.ServerResult(await agent.resources(caller(), cursor))

    async def list_templates(_: types.ListResourceTemplatesRequest) -> types.ServerResult:
        return types.ServerResult(agent.templates())

    async def read_resource(request: types.ReadResourceRequest) -> types.ServerResult:
        found = await agent.read(caller(), str(request.params.uri), not_found=_RESOURCE_NOT_FOUND)
        return types.ServerResult(found)

    server.request_handlers |= {
        types.ListToolsRequest: list_tools,
        types.CallToolRequest: call_tool,
        types.ListResourcesRequest: list_resources,
        types.ListResourceTemplatesRequest: list_templates,
        types.ReadResourceRequest: read_resource,
    }
    return server
