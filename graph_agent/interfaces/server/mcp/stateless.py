"""Serves the version of MCP without a handshake, 2026-07-28.

Each request states its version and its client, so it is called *stateless* here. The SDK 1.x does not have it. The SDK
2.x cannot be installed together with 1.x, which the MCP client needs.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from mcp import McpError, types
from pydantic import SecretStr

from graph_agent.base._internal.failure_log import log_failure
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.mcp.agent_tool import AgentTool, ToolCall
from graph_agent.interfaces.server.mcp.forms import Form, offers_forms
from graph_agent.interfaces.server.problems import problem_of_failure

logger = logging.getLogger("graph_agent.server.mcp.protocols")

MCP_VERSION = "2026-07-28"
"""The protocol version of requests without a handshake."""
_PREFIX = "io.modelcontextprotocol/"
_VERSION, _CAPABILITIES = f"{_PREFIX}protocolVersion", f"{_PREFIX}clientCapabilities"
_HEADER_MISMATCH, _UNSUPPORTED_VERSION = -32020, -32022
STATUS_OF_ERROR = {
    types.METHOD_NOT_FOUND: 404,
    types.INVALID_PARAMS: 400,
    _HEADER_MISMATCH: 400,
    _UNSUPPORTED_VERSION: 400,
}
"""Code of a JSON-RPC error → HTTP status of its response; 200 for other codes."""
_NAMED = {"tools/call": "name", "resources/read": "uri"}
"""Method → the parameter whose value the header `Mcp-Name` must repeat."""
_BASE64 = re.compile(r"=\?base64\?(.*)\?=")


class InputRequiredError(McpError):
    """A call without a handshake needs a reviewer's responses to forms, which the client sends with the same call
    again.

    `result` is the result that the client receives: the forms, and the session's id as `requestState`.
    """

    def __init__(self, session_id: str, forms: Mapping[str, Form]) -> None:
        super().__init__(types.ErrorData(code=types.INTERNAL_ERROR, message="The call needs a person's answer."))
        requests = {
            key: {"method": "elicitation/create", "params": {"mode": "form", **form}} for key, form in forms.items()
        }
        self.result = {"resultType": "input_required", "inputRequests": requests, "requestState": session_id}


def is_stateless(message: Any) -> bool:
    """Return whether a JSON-RPC message is a request without a handshake, which states its version in `_meta`. False
    for `initialize`.
    """
    params = message.params if isinstance(message, types.JSONRPCRequest) and message.method != "initialize" else None
    meta = params.get("_meta") if params is not None else None
    return isinstance(meta, Mapping) and _VERSION in meta


def check_request(request: types.JSONRPCRequest, headers: Mapping[str, str] | None = None) -> None:
    """Check that a request declares its protocol version and its client's capabilities, that its HTTP headers agree
    with it, and that the version is known, in this order.

    Args:
        headers: The HTTP headers; None over standard input.

    Raises:
        McpError: `_meta` lacks the version or the capabilities, a header differs from the body, or the version is
            unknown.
    """
    params = request.params or {}
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or not {_VERSION, _CAPABILITIES} <= meta.keys():
        raise _error(types.INVALID_PARAMS, f"params._meta needs {_VERSION!r} and {_CAPABILITIES!r}.")
    # Proxies route by the headers, so these must not differ from the body.
    if headers is not None:
        expected = {"mcp-protocol-version": meta[_VERSION], "mcp-method": request.method}
        if request.method in _NAMED:
            expected["mcp-name"] = params.get(_NAMED[request.method])
        for name, value in expected.items():
            if _decoded(headers.get(name)) != value:
                raise _error(_HEADER_MISMATCH, f"The header {name} is not {value!r}, as the request's body has it.")
    if meta[_VERSION] != MCP_VERSION:
        raise _error(
            _UNSUPPORTED_VERSION,
            f"The protocol version {meta[_VERSION]!r} is not supported.",
            {"supported": [MCP_VERSION], "requested": meta[_VERSION]},
        )


@dataclass(frozen=True, slots=True)
class StatelessRequest:
    """A request of a protocol version without a handshake, which `check_request` has accepted."""

    agent: AgentTool
    message: types.JSONRPCRequest
    """The JSON-RPC request."""
    caller: Caller
    """The owner of the API key."""
    notify: Callable[[dict[str, Any]], Awaitable[None]]
    """Sends a notification that belongs to the request, such as progress."""
    credentials: Mapping[str, SecretStr] = field(default_factory=dict)
    """Secrets from the headers of the request for the agent's tools, by name."""
    aborts: bool = True
    """Whether cancelling a tool call aborts a run whose input has an id. A run without an id is always aborted."""

    async def response(self) -> dict[str, Any]:
        """Execute the request, and return the JSON-RPC response.

        A result has the server's name and version in `_meta`, and the type `complete` or, for forms that a reviewer
        must answer, `input_required`. Failures are error responses; unexpected ones are logged, and have no details.
        """
        id_, method = self.message.id, self.message.method
        try:
            result = await self._result(method, self.message.params or {})
        except InputRequiredError as required:
            result = required.result
        except McpError as error:
            return error_response(id_, error)
        except Exception as error:  # noqa: BLE001 - any failure must end in a response; the cause is logged
            log_failure(logger, f"The request {method} over MCP", error)
            return error_response(id_, _error(types.INTERNAL_ERROR, problem_of_failure(error).message))
        server = {"name": self.agent.host.source.name, "version": metadata.version("graph-agent")}
        # A result that needs input has its own type, which replaces this one.
        stamped = {"resultType": "complete", **result, "_meta": {f"{_PREFIX}serverInfo": server}}
        return {"jsonrpc": "2.0", "id": id_, "result": stamped}

    async def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Execute a method with its parameters, and return the result.

        The methods are `server/discover`, `tools/list`, `tools/call`, `resources/list`, `resources/templates/list` and
        `resources/read`. Raises `McpError` for an unknown method or invalid parameters, and `InputRequiredError` if a
        reviewer must answer forms first.
        """
        match method:
            case "server/discover":
                return _cached({"supportedVersions": [MCP_VERSION], "capabilities": {"tools": {}, "resources": {}}})
            case "tools/list":
                return _cached({"tools": [_json(self.agent.definition)]})
            case "resources/list":
                cursor = params.get("cursor")
                return _cached(_json(await self.agent.resources(self.caller, None if cursor is None else str(cursor))))
            case "resources/templates/list":
                return _cached(_json(self.agent.templates()))
            case "resources/read":
                return _cached(_json(await self.agent.read(self.caller, str(params.get("uri")))))
            case "tools/call":
                return _json(await self.agent.call(str(params.get("name")), self._call(params)))
        raise _error(types.METHOD_NOT_FOUND, f"There is no method {method!r} here.")

    def _call(self, params: Mapping[str, Any]) -> ToolCall:
        """Return the tool call that the parameters describe, without the tool's name.

        If the client can show forms, the call raises `InputRequiredError` to show them.

        Raises:
            McpError: A parameter has a wrong type, or `inputResponses` comes without the `requestState` of its forms.
        """
        meta, responses, state = params["_meta"], params.get("inputResponses"), params.get("requestState")
        arguments = params.get("arguments") or {}
        if (
            not isinstance(arguments, dict)
            or not isinstance(responses, dict | None)
            or not isinstance(state, str | None)
        ):
            raise _error(types.INVALID_PARAMS, "arguments and inputResponses are objects, requestState is a string.")
        # The session of the forms is in the state that came with them.
        if responses is not None and state is None:
            raise _error(
                types.INVALID_PARAMS, "inputResponses need the requestState that came with their inputRequests."
            )

        async def report(progress: float, text: str) -> None:
            """Send a progress notification, if the request has a progress token."""
            # A client without a token does not expect progress.
            if (token := meta.get("progressToken")) is not None:
                given = {"progressToken": token, "progress": progress, "message": text}
                await self.notify({"jsonrpc": "2.0", "method": "notifications/progress", "params": given})

        async def ask(session_id: str, forms: Mapping[str, Form]) -> Mapping[str, Any]:
            """Raise `InputRequiredError`, because the client sends the responses with another request."""
            raise InputRequiredError(session_id, forms)

        capabilities = meta[_CAPABILITIES]
        can_ask = isinstance(capabilities, Mapping) and offers_forms(capabilities.get("elicitation"))
        return ToolCall(
            arguments,
            self.caller,
            report,
            ask if can_ask else None,
            meta,
            self.credentials,
            state,
            responses,
            aborts=self.aborts,
        )


def error_response(request_id: Any, error: McpError) -> dict[str, Any]:
    """Return the JSON-RPC response for an error; `request_id` is None if the request's id is unknown."""
    return {"jsonrpc": "2.0", "id": request_id, "error": error.error.model_dump(exclude_none=True)}


def _cached(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the cache rules that the protocol requires; they forbid caching."""
    # Tools and sessions may change at any time, and sessions belong to one caller.
    return {**result, "ttlMs": 0, "cacheScope": "private"}


def _json(result: Any) -> dict[str, Any]:
    """Return an object of the SDK as JSON, without fields that are None."""
    dumped: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def _decoded(value: str | None) -> str | None:
    """Return the value of a header, decoded if it has the form `=?base64?…?=`, else unchanged. None if there is no
    header, or the base64 is malformed.
    """
    if value is None or (found := _BASE64.fullmatch(value)) is None:
        return value
    try:
        return base64.b64decode(found[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _error(code: int, message: str, data: Any = None) -> McpError:
    """Return a JSON-RPC error as an exception; `data` is its optional details."""
    return McpError(types.ErrorData(code=code, message=message, data=data))
