"""Answers the requests of MCP 2026-07-28, which has no handshake: each request states its version and its client.

The SDK 1.x does not have this version. The SDK 2.x cannot be installed beside it, and the MCP client needs 1.x.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from typing import Any

from mcp import McpError, types
from pydantic import SecretStr

from graph_agent._internal.failure_log import log_failure
from graph_agent.server.admission.gate import Caller
from graph_agent.server.mcp.agent_tool import AgentTool, ToolCall
from graph_agent.server.mcp.handshake import offers_forms
from graph_agent.server.mcp.questions import Form
from graph_agent.server.problems import problem_of_failure

logger = logging.getLogger(__name__)

VERSION = "2026-07-28"
_PREFIX = "io.modelcontextprotocol/"
_VERSION, _CAPABILITIES = f"{_PREFIX}protocolVersion", f"{_PREFIX}clientCapabilities"
_HEADER_MISMATCH, _UNSUPPORTED_VERSION = -32020, -32022
STATUS = {types.METHOD_NOT_FOUND: 404, types.INVALID_PARAMS: 400, _HEADER_MISMATCH: 400, _UNSUPPORTED_VERSION: 400}
"""Code of an error → the HTTP status of its response; 200 for any other."""
_NAMED = {"tools/call": "name", "resources/read": "uri"}
"""Method → the parameter that the header `Mcp-Name` repeats."""
_BASE64 = re.compile(r"=\?base64\?(.*)\?=")
Notify = Callable[[dict[str, Any]], Awaitable[None]]


class InputRequiredError(McpError):
    """A call needs the responses to some forms; the client sends the call again with them."""

    def __init__(self, session_id: str, forms: Mapping[str, Form]) -> None:
        super().__init__(types.ErrorData(code=types.INTERNAL_ERROR, message="The call needs a person's answer."))
        requests = {
            key: {"method": "elicitation/create", "params": {"mode": "form", **form}} for key, form in forms.items()
        }
        self.result = {"resultType": "input_required", "inputRequests": requests, "requestState": session_id}


def is_stateless(message: Any) -> bool:
    """Whether a message is a request of a version without a handshake."""
    params = message.params if isinstance(message, types.JSONRPCRequest) and message.method != "initialize" else None
    meta = params.get("_meta") if params is not None else None
    return isinstance(meta, Mapping) and _VERSION in meta


def check_request(request: types.JSONRPCRequest, headers: Mapping[str, str] | None = None) -> None:
    """Check what a request states of its version and its client, and that its headers repeat it.

    Args:
        headers: The headers of its HTTP request; None over stdio.

    Raises:
        McpError: If it is not valid.
    """
    params = request.params or {}
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or not {_VERSION, _CAPABILITIES} <= meta.keys():
        raise _error(types.INVALID_PARAMS, f"params._meta needs {_VERSION!r} and {_CAPABILITIES!r}.")
    if headers is not None:
        expected = {"mcp-protocol-version": meta[_VERSION], "mcp-method": request.method}
        if request.method in _NAMED:
            expected["mcp-name"] = params.get(_NAMED[request.method])
        for name, value in expected.items():
            if _decoded(headers.get(name)) != value:
                raise _error(_HEADER_MISMATCH, f"The header {name} is not {value!r}, as the request's body has it.")
    if meta[_VERSION] != VERSION:
        raise _error(
            _UNSUPPORTED_VERSION,
            f"The protocol version {meta[_VERSION]!r} is not supported.",
            {"supported": [VERSION], "requested": meta[_VERSION]},
        )


async def respond(
    agent: AgentTool,
    request: types.JSONRPCRequest,
    caller: Caller,
    notify: Notify,
    *,
    credentials: Mapping[str, SecretStr] | None = None,
    aborts: bool = True,
) -> dict[str, Any]:
    """Return the JSON-RPC response of a checked request.

    Args:
        notify: Sends a notification that belongs to the request.
        aborts: Same as in `ToolCall`.
    """
    try:
        result = await _result(agent, request, caller, notify, credentials or {}, aborts=aborts)
    except InputRequiredError as required:
        result = required.result
    except McpError as error:
        return error_response(request.id, error)
    except Exception as error:  # noqa: BLE001 - any failure must end in a response; the cause is logged
        log_failure(logger, f"The request {request.method} over MCP", error)
        return error_response(request.id, _error(types.INTERNAL_ERROR, problem_of_failure(error).message))
    server = {"name": agent.host.source.name, "version": metadata.version("graph-agent")}
    stamped = {"resultType": "complete", **result, "_meta": {f"{_PREFIX}serverInfo": server}}
    return {"jsonrpc": "2.0", "id": request.id, "result": stamped}


def error_response(request_id: Any, error: McpError) -> dict[str, Any]:
    """Return the JSON-RPC response for an error."""
    return {"jsonrpc": "2.0", "id": request_id, "error": error.error.model_dump(exclude_none=True)}


async def _result(
    agent: AgentTool,
    request: types.JSONRPCRequest,
    caller: Caller,
    notify: Notify,
    credentials: Mapping[str, SecretStr],
    *,
    aborts: bool,
) -> dict[str, Any]:
    params = request.params or {}
    match request.method:
        case "server/discover":
            return _cached({"supportedVersions": [VERSION], "capabilities": {"tools": {}, "resources": {}}})
        case "tools/list":
            return _cached({"tools": [_json(agent.definition)]})
        case "resources/list":
            cursor = params.get("cursor")
            return _cached(_json(await agent.resources(caller, None if cursor is None else str(cursor))))
        case "resources/templates/list":
            return _cached(_json(agent.templates()))
        case "resources/read":
            return _cached(_json(await agent.read(caller, str(params.get("uri")))))
        case "tools/call":
            call = _tool_call(params, caller, notify, credentials, aborts=aborts)
            return _json(await agent.call(str(params.get("name")), call))
    raise _error(types.METHOD_NOT_FOUND, f"There is no method {request.method!r} here.")


def _tool_call(
    params: Mapping[str, Any], caller: Caller, notify: Notify, credentials: Mapping[str, SecretStr], *, aborts: bool
) -> ToolCall:
    meta, responses, state = params["_meta"], params.get("inputResponses"), params.get("requestState")
    arguments = params.get("arguments") or {}
    if not isinstance(arguments, dict) or not isinstance(responses, dict | None) or not isinstance(state, str | None):
        raise _error(types.INVALID_PARAMS, "arguments and inputResponses are objects, requestState is a string.")
    if responses is not None and state is None:
        raise _error(types.INVALID_PARAMS, "inputResponses need the requestState that came with their inputRequests.")

    async def report(progress: float, text: str) -> None:
        if (token := meta.get("progressToken")) is not None:
            given = {"progressToken": token, "progress": progress, "message": text}
            await notify({"jsonrpc": "2.0", "method": "notifications/progress", "params": given})

    async def ask(session_id: str, forms: Mapping[str, Form]) -> Mapping[str, Any]:
        raise InputRequiredError(session_id, forms)

    capabilities = meta[_CAPABILITIES]
    can_ask = isinstance(capabilities, Mapping) and offers_forms(capabilities.get("elicitation"))
    return ToolCall(
        arguments, caller, report, ask if can_ask else None, meta, credentials, state, responses, aborts=aborts
    )


def _cached(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the required rules for caches: none may keep it."""
    return {**result, "ttlMs": 0, "cacheScope": "private"}


def _json(result: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def _decoded(value: str | None) -> str | None:
    if value is None or (found := _BASE64.fullmatch(value)) is None:
        return value
    try:
        return base64.b64decode(found[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _error(code: int, message: str, data: Any = None) -> McpError:
    return McpError(types.ErrorData(code=code, message=message, data=data))
