"""Serves the versions of MCP with a handshake, 2024-11-05 to 2025-11-25, by the SDK 1.x."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from mcp import McpError, types
from mcp.server.lowlevel import Server
from starlette.requests import HTTPConnection

from graph_agent.interfaces.server.admission.gate import Caller, admitted_caller
from graph_agent.interfaces.server.mcp.agent_tool import AgentTool, AskClient, ToolCall
from graph_agent.interfaces.server.mcp.forms import Form, offers_forms

_RESOURCE_NOT_FOUND = -32002


def sdk_server(agent: AgentTool) -> Server[Any, Any]:
    """Return an MCP server of the SDK that offers the agent as a tool, and the sessions of the request's caller as
    resources.
    """
    server: Server[Any, Any] = Server(agent.host.source.name, metadata.version("graph-agent"))

    def caller() -> Caller:
        """Return the caller of the current request; over standard input, the caller without a name."""
        request = server.request_context.request
        return admitted_caller(request) if isinstance(request, HTTPConnection) else Caller("")

    async def report(progress: float, text: str) -> None:
        """Send progress to the client, if the request has a progress token."""
        context = server.request_context
        token = context.meta.progressToken if context.meta is not None else None
        if token is not None:
            await context.session.send_progress_notification(
                # The SDK then sends it over the stream of the request.
                token,
                progress,
                message=text,
                related_request_id=str(context.request_id),
            )

    def ask() -> AskClient | None:
        """Return the function that shows forms to a reviewer through the client; None if the client cannot show
        forms.
        """
        context = server.request_context
        client = context.session.client_params
        elicitation = client.capabilities.elicitation if client is not None else None
        if elicitation is None or not offers_forms(elicitation.model_dump(exclude_none=True)):
            return None

        async def elicit(session_id: str, forms: Mapping[str, Form]) -> Mapping[str, Any]:
            """Show the forms one after the other, and return the responses by key.

            Stops without an error at the first form that the reviewer dismisses, or the client cannot show; a declined
            form has a response.
            """
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
        """Run a call of the agent's tool for the request's caller, with the credentials of its headers, and return the
        result.

        Forms and progress are sent to the client as far as it supports them. Raises `McpError` for another tool, and
        `InvalidRequestError` if a credential header occurs twice.
        """
        context = server.request_context
        http = context.request
        call = ToolCall(
            request.params.arguments or {},
            caller(),
            report,
            ask(),
            context.meta.model_dump() if context.meta is not None else {},
            # Standard input has no headers.
            agent.host.credentials_of(http) if isinstance(http, HTTPConnection) else {},
        )
        return types.ServerResult(await agent.call(request.params.name, call))

    async def list_tools(_: types.ListToolsRequest) -> types.ServerResult:
        """Return the agent's tool."""
        return types.ServerResult(types.ListToolsResult(tools=[agent.definition]))

    async def list_resources(request: types.ListResourcesRequest) -> types.ServerResult:
        """Return a page of the caller's sessions; raise `McpError` for an unknown cursor."""
        cursor = request.params.cursor if request.params is not None else None
        return types.ServerResult(await agent.resources(caller(), cursor))

    async def list_templates(_: types.ListResourceTemplatesRequest) -> types.ServerResult:
        """Return the template of the sessions' URIs."""
        return types.ServerResult(agent.templates())

    async def read_resource(request: types.ReadResourceRequest) -> types.ServerResult:
        """Return the content of one session of the caller; raise `McpError` if there is no such session."""
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
