"""Converts a request's options, and refuses unsupported fields."""

from __future__ import annotations

from typing import Any

from graph_agent.server.chat.schemas import checked_schema
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.responses.schemas import CreateResponse, Format, FunctionTool, NamedChoice

ENCRYPTED_REASONING = "reasoning.encrypted_content"


def check_supported(body: CreateResponse) -> None:
    """Check that a request has no field whose effect this server cannot provide.

    Raises:
        ProblemError: If it has one.
    """
    if body.prompt is not None:
        raise ProblemError("invalid", "There are no stored prompts here; send instructions and input.", param="prompt")
    if body.generate is False:
        raise ProblemError("invalid", "generate: nothing is prepared in advance; leave it out.", param="generate")
    if body.previous_response_id is not None and body.conversation is not None:
        raise ProblemError(
            "invalid", "previous_response_id and conversation exclude each other; send one.", param="conversation"
        )
    if not body.is_stored:
        for name in ("background", "conversation"):
            if getattr(body, name):
                raise ProblemError(
                    "invalid", f"{name} keeps the response, and store is false; send one of them.", param=name
                )
    if any(tool.type == "function" and not tool.name for tool in body.tools or []):
        raise ProblemError("invalid", "A tool has no name.", param="tools")


def unsupported_tools_of(body: CreateResponse) -> list[str]:
    """Return the types of the tools that are neither functions of the caller nor the agent's own."""
    return [tool.type for tool in body.tools or [] if tool.type != "function" and not is_agent(tool, body.model)]


def is_agent(tool: FunctionTool, name: str) -> bool:
    """Whether a tool stands for the agent's own tools; clients declare the server of the items that they accept."""
    is_own = tool.type == "mcp" and tool.server_label == name
    return is_own and tool.server_url is None and tool.connector_id is None


def options_of(body: CreateResponse) -> dict[str, Any]:
    """Return the fields of `AgentContext` that a request sets.

    Raises:
        ProblemError: If one is invalid.
    """
    options: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_output_tokens,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_schema": _response_schema(body.text.format if body.text else None),
        "client_tool_choice": _choice(body),
        "parallel_client_calls": body.parallel_tool_calls,
        "max_agentic_loops": body.max_agentic_loops,
    }
    return {name: value for name, value in options.items() if value is not None}


def client_tools_of(body: CreateResponse) -> list[dict[str, Any]]:
    """Return the caller's tools that the model may call, as OpenAI functions."""
    choice = body.tool_choice
    if choice == "none":
        return []
    allowed = None
    if isinstance(choice, NamedChoice) and choice.type == "allowed_tools":
        allowed = {tool.name for tool in choice.tools or []}
    functions = [tool for tool in body.tools or [] if tool.type == "function"]
    return [_tool(tool) for tool in functions if allowed is None or tool.name in allowed]


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _choice(body: CreateResponse) -> str | None:
    choice = body.tool_choice
    if not isinstance(choice, NamedChoice):
        return "any" if choice == "required" else None
    names = {tool.name for tool in body.tools or [] if tool.type == "function"}
    match choice.type:
        case "function":
            if choice.name not in names:
                raise _not_among(choice.name)
            return choice.name
        case "allowed_tools":
            for tool in choice.tools or []:
                if tool.type != "function" or tool.name not in names:
                    raise _not_among(tool.name)
            return "any" if choice.mode == "required" else None
        case _:
            raise ProblemError("invalid", f"tool_choice: type {choice.type!r} is not supported.", param="tool_choice")


def _not_among(name: str | None) -> ProblemError:
    return ProblemError("invalid", f"tool_choice names {name!r}, which is not among the tools.", param="tool_choice")


def _response_schema(format_: Format | None) -> dict[str, Any] | None:
    if format_ is None or format_.type == "text":
        return None
    if format_.type == "json_object":
        return {"type": "object"}
    if format_.schema_ is None:
        raise ProblemError("invalid", "text.format has no schema.", param="text.format")
    return checked_schema(format_.schema_, "text.format")
