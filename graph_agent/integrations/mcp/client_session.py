"""Extends the SDK's client session to receive messages while a question or a result's validation is pending."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import mcp.types as types
from langchain_mcp_adapters.callbacks import CallbackContext
from mcp import ClientSession
from mcp.client.session import ElicitationFnT
from mcp.shared.context import RequestContext
from mcp.shared.session import RequestResponder

from graph_agent.base._internal.failure_log import get_logger, log_user_error
from graph_agent.base.errors import ConfigError, SlowSchemaError

logger = get_logger("graph_agent.mcp")

ResultPage = TypeVar("ResultPage", bound=types.PaginatedResult, covariant=True)
_MAX_PAGES = 1000
"""Maximum pages that are read of one list."""
_Check = Callable[[dict[str, Any]], None]
"""Checks structured content; raises `RuntimeError` if it does not fit."""
ElicitationHandler = Callable[..., Awaitable[types.ElicitResult | types.ErrorData]]
"""Called as `(context, params)`, as in the MCP SDK, or with a third `CallbackContext`, as in LangChain's adapters."""


class McpSession(ClientSession):
    """The SDK's client session, with the server's requests handled in tasks of their own.

    The SDK awaits the elicitation callback in the loop that also delivers all replies, so that a question that waits
    for a user would block every other call of the server. `on_tools_changed` is called when the server announces
    changed tools; the other arguments are the SDK's.
    """

    def __init__(self, *args: Any, on_tools_changed: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_tools_changed = on_tools_changed
        self._answering: set[asyncio.Task[None]] = set()
        self._checks: dict[str, tuple[dict[str, Any], _Check]] = {}

    async def _received_request(self, responder: RequestResponder[types.ServerRequest, types.ClientResult]) -> None:
        """Handle a request of the server in a task, which ends with the session."""
        task = asyncio.create_task(super()._received_request(responder))
        self._answering.add(task)
        task.add_done_callback(self._answered)

    async def _received_notification(self, notification: types.ServerNotification) -> None:
        """Handle a notification, and report changed tools."""
        await super()._received_notification(notification)
        if isinstance(notification.root, types.ToolListChangedNotification):
            self._on_tools_changed()

    def _answered(self, task: asyncio.Task[None]) -> None:
        """Forget a request that was handled; log an error."""
        self._answering.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.debug("An answer to an MCP server's request could not be sent: %r", error)

    async def _validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """Validate a result's structured content as the SDK does, but in a thread and in bounded time.

        A tool without an output schema passes. Raises `RuntimeError`, as the SDK does, if the content is missing, does
        not fit the schema or takes too long to check, or if the schema is invalid.
        """
        schema = self._tool_output_schemas.get(name)
        if schema is None:
            return
        if result.structuredContent is None:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        known, check = self._checks.get(name, (None, None))
        # The server's tools may have been listed anew, with another schema under the same name.
        if check is None or known is not schema:
            # A server's schema may be slow to compile and to check; other calls must not wait for that.
            check = await asyncio.to_thread(_result_check, name, schema)
            self._checks[name] = schema, check
        await asyncio.to_thread(check, result.structuredContent)

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        for task in self._answering:
            task.cancel()
        return await super().__aexit__(*exc_info)


def _result_check(tool: str, schema: dict[str, Any]) -> _Check:
    """Return a function that checks a tool's structured content by its output schema.

    As in the SDK, both raise `RuntimeError`: the function if the content does not fit, this one if the schema is
    invalid.
    """
    # Imported where it is used: jsonschema is not a part of a server's start.
    from jsonschema import ValidationError

    from graph_agent.base._internal.json_schema import SchemaCheck

    try:
        validate = SchemaCheck(schema, f"The output schema of {tool}")
    except (ConfigError, RecursionError) as error:
        raise RuntimeError(f"Invalid schema for tool {tool}: {error}") from None

    def check(content: dict[str, Any]) -> None:
        """Raise `RuntimeError` if structured content does not fit the schema, or takes too long to check."""
        try:
            validate(content)
        except (SlowSchemaError, RecursionError) as error:
            raise RuntimeError(f"Invalid schema for tool {tool}: {error}") from None
        except ValidationError as error:
            raise RuntimeError(f"Invalid structured content returned by tool {tool}: {error}") from None

    return check


class _PageReader(Protocol[ResultPage]):
    """A request for one page of a list."""

    async def __call__(self, *, params: types.PaginatedRequestParams | None) -> ResultPage: ...


async def read_pages(read: _PageReader[ResultPage]) -> AsyncGenerator[ResultPage, None]:
    """Yield the pages of one of the server's lists, at most 1,000, because a list may never end."""
    params = None
    for _ in range(_MAX_PAGES):
        page = await read(params=params)
        yield page
        if not page.nextCursor:
            return
        params = types.PaginatedRequestParams(cursor=page.nextCursor)


def elicitation_for(server: str, handler: ElicitationHandler | None) -> ElicitationFnT | None:
    """Adapt a user's elicitation callback to the SDK; None without one, which the SDK announces as unsupported.

    An exception of the callback is logged and becomes an error reply, so that the server's tool can continue or fail. A
    callback with three parameters also receives a `CallbackContext`.

    Args:
        server: The server's name.
        handler: The callback.
    """
    if handler is None:
        return None
    takes_context = _takes_three(handler)

    async def ask(
        context: RequestContext[ClientSession, Any], params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a question by the callback; an exception is logged and becomes an error reply."""
        extra = (CallbackContext(server_name=server),) if takes_context else ()
        try:
            return await handler(context, params, *extra)
        except Exception as error:  # noqa: BLE001 - a callback may raise anything; the server gets an error answer
            log_user_error(logger, f"The elicitation callback for the MCP server {server!r}", error)
            return types.ErrorData(
                code=types.INTERNAL_ERROR, message=f"The client could not ask: {type(error).__name__}."
            )

    return ask


def _takes_three(handler: ElicitationHandler) -> bool:
    """Whether a callback accepts a third argument, by its signature."""
    try:
        inspect.signature(handler).bind(None, None, None)
    except TypeError:
        return False
    return True
