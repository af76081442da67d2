"""Validates requests: size limits, query parameters, and values that cannot be stored."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from a2a import types
from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.tasks import TaskStore
from a2a.utils.error_handlers import build_error_details, build_rest_error_payload
from a2a.utils.errors import (
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import decode_list_tasks_cursor, decode_page_token
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from graph_agent.base._internal.credential_headers import credentials_of
from graph_agent.base._internal.failure_log import leaves
from graph_agent.base._internal.json_bounds import JsonBounds, JsonBoundsError
from graph_agent.base._internal.text import find_lone_surrogate
from graph_agent.base.errors import InputError
from graph_agent.interfaces.server.a2a.cross_process import OtherProcesses
from graph_agent.interfaces.server.a2a.store import is_running_task
from graph_agent.interfaces.server.admission.body import ReplayedBody, read_body
from graph_agent.interfaces.server.sse import with_json_lines

_STATE = "graph_agent_credentials"
_HEADERS = "headers"


class CredentialContext(ServerCallContextBuilder):
    """Builds the SDK's call context with the credentials of a request as secrets; their headers are removed.

    Args:
        inner: Builds the rest of the context.
        names: Credential name → request header.
    """

    def __init__(self, inner: ServerCallContextBuilder, names: Mapping[str, str]) -> None:
        self._inner = inner
        self._names = names
        self._headers = frozenset(header.lower() for header in names.values())

    def build(self, request: Request) -> ServerCallContext:
        """Return the context of a request.

        A credential header that occurs twice is reported by `request_credentials`.
        """
        context = self._inner.build(request)
        headers: Mapping[str, Any] = context.state.get(_HEADERS, {})
        context.state[_HEADERS] = {name: value for name, value in headers.items() if name.lower() not in self._headers}
        try:
            context.state[_STATE] = credentials_of(request.headers, self._names)
        except InputError as error:
            # Raised by `request_credentials` instead: the SDK maps no exception of a builder to a response.
            context.state[_STATE] = InvalidParamsError(message=str(error))
        return context


def request_credentials(context: ServerCallContext) -> dict[str, SecretStr]:
    """Return the credentials of a request; raise `InvalidParamsError` if a credential header occurs twice."""
    found: dict[str, SecretStr] | InvalidParamsError = context.state.get(_STATE, {})
    if isinstance(found, InvalidParamsError):
        raise found
    return found


Refusal = Callable[[Any, A2AError], Response]
"""Builds the response to a refused request from its JSON (None if unknown) and the error."""


class CheckedRequests(SimpleRequestContextBuilder):
    """Builds the SDK's context of a request, and refuses a message that cannot be stored or whose task is running.

    Args:
        notifies: Whether the server sends push notifications.
        tasks: The stored tasks.
        task_lease: Returns whether this process runs a task.
        other_processes: The tasks that other processes run.
        check_new: Raises an `A2AError` if a message cannot begin a task.
    """

    def __init__(
        self,
        *,
        notifies: bool,
        tasks: TaskStore,
        task_lease: Callable[[str], bool],
        other_processes: OtherProcesses,
        check_new: Callable[[RequestContext], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._check_new = check_new
        self._notifies = notifies
        self._tasks = tasks
        self._has_lease = task_lease
        self._other_processes = other_processes

    async def build(
        self,
        context: ServerCallContext,
        params: types.SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: types.Task | None = None,
    ) -> RequestContext:
        """Build the context; a message with a task id but no context id belongs to that task's conversation.

        The same first message of an authenticated caller begins the same conversation, in which it is run once.

        Raises an `A2AError` for values that cannot be stored (numbers that are not finite, deep nesting, NUL in an id),
        an empty part, credentials in metadata or twice in headers, a message id of another message, unsupported push
        notifications, and a task that is running, in this process or another.
        """
        if params is not None:
            _check(params)
            request_credentials(context)
            if params.configuration.HasField("task_push_notification_config") and not self._notifies:
                raise PushNotificationNotSupportedError
            # The SDK reads the task later, when the message has been queued to its run.
            known = await self._tasks.get(task_id, context) if task_id else None
            if known is not None:
                await self._check_idle(known, context)
                # Without a context id the SDK would start a new conversation.
                context_id = known.context_id
            elif not (context_id or params.message.task_id or params.message.context_id):
                context_id = _conversation_of(params, context.user.user_name)
        built = await super().build(context, params, task_id, context_id, task)
        if params is not None and not task_id:
            await self._check_new(built)
        return built

    async def _check_idle(self, task: types.Task, context: ServerCallContext) -> None:
        """Raise `UnsupportedOperationError` if a task is running, in this process or another."""
        if is_running_task(task) and (self._has_lease(task.id) or await self._other_processes.has(task.id, context)):
            raise UnsupportedOperationError(message=STILL_RUNNING)


def _conversation_of(params: types.SendMessageRequest, user: str) -> str | None:
    """Return the id of the conversation that a first message begins; None to let the SDK make a new one.

    It depends on the caller, the message's id and its content. An anonymous caller gets a new conversation each time:
    its message ids are unique only among its own, and nothing but its id protects a conversation without a user.
    """
    if not user:
        return None
    sent = params.message.SerializeToString(deterministic=True)
    named = json.dumps([user, params.tenant, hashlib.sha256(sent).hexdigest()])
    return str(uuid.UUID(bytes=hashlib.sha256(named.encode()).digest()[:16]))


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Size limits of one A2A request; the SDK blocks the event loop for tens of microseconds per value."""

    values: int = 5_000
    """JSON values: objects, arrays, strings, numbers, `true`, `false` and `null`; keys do not count."""
    depth: int = 100
    """Nesting levels of JSON."""
    parts: int = 200
    """Parts of a message."""
    characters: int = 1_000_000
    """Characters of all strings and keys together, without file bytes, which the SDK does not scan."""


class BoundedRequests:
    """ASGI middleware that passes requests on only if they are valid UTF-8 within the size limits.

    The SDK reports a request in another encoding as an internal error, and ignores an unknown state and with it the
    filter of a list.

    Args:
        app: The SDK's application.
        bounds: The limits.
        refusal: Builds the response to a refused request.
    """

    def __init__(self, app: ASGIApp, bounds: RequestBounds, refusal: Refusal) -> None:
        self._app = app
        self._bounds = bounds
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or send its refusal; sends nothing if the client has disconnected."""
        send = with_json_lines(send)
        if scope["method"] != "POST":
            try:
                check_query(scope["query_string"])
            except InvalidParamsError as error:
                await self._refusal(None, error)(scope, receive, send)
            else:
                await self._app(scope, receive, send)
            return
        try:
            # The limits of an A2A request are lower than those of other APIs, because the SDK is slower.
            body = await read_body(receive, JsonBounds(self._bounds.values, self._bounds.depth))
            if body is None:
                return  # the client has disconnected
            request = _decoded(body)
            self._check_parts(request)
            self._check_characters(request)
        except JsonBoundsError as error:
            await self._refusal(None, JSONParseError(str(error)))(scope, receive, send)
            return
        if (refused := _refused_text(request) or _refused_params(request)) is not None:
            await self._refusal(request, refused)(scope, receive, send)
            return
        # The SDK parses a large body again; yield to other tasks before that.
        await asyncio.sleep(0)
        await self._app(scope, ReplayedBody(body, receive), send)

    def _check_parts(self, request: Any) -> None:
        """Raise `JsonBoundsError` if the message of a request has too many parts."""
        params = request.get("params", request) if isinstance(request, dict) else None
        message = params.get("message") if isinstance(params, dict) else None
        if not isinstance(message, dict):
            return
        # Version 0.3 over HTTP+JSON calls the parts `content`.
        amount = max(len(parts) for name in ("parts", "content") if isinstance(parts := message.get(name, []), list))
        if amount > self._bounds.parts:
            raise JsonBoundsError(
                f"The message has {amount} parts; it may have {self._bounds.parts}. Join texts, or send more messages."
            )

    def _check_characters(self, request: Any) -> None:
        """Raise `JsonBoundsError` if a request has too many characters of text."""
        amount = sum(map(len, _strings(request)))
        if amount > self._bounds.characters:
            raise JsonBoundsError(
                f"The request has {amount} characters of text; it may have {self._bounds.characters}, the bytes of "
                "files aside. Send a shorter text, or the text as a file."
            )


def _strings(request: Any) -> Iterator[str]:
    """Yield the strings and keys of a JSON value, without the base64 of files."""
    pending = [request]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict):
            yield from value
            pending.extend(item for key, item in value.items() if not (key in _FILE_BYTES and isinstance(item, str)))


_FILE_BYTES = frozenset({"raw", "bytes", "fileWithBytes", "file_with_bytes"})
"""Keys with the base64 of a file, in all protocol versions."""


def _decoded(body: bytes) -> Any:
    """Parse a body as JSON.

    Returns None for invalid JSON, which the SDK refuses. Raise `JsonBoundsError` if it is not UTF-8.
    """
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError:
        raise JsonBoundsError("The request is not JSON in UTF-8.") from None
    except ValueError:
        return None


def check_query(query: bytes) -> None:
    """Check the query string of a request, which may list tasks.

    Raises `InvalidParamsError` if it is not UTF-8, or a known parameter is repeated, invalid, or written in snake case.
    """
    try:
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise InvalidParamsError("The query is not UTF-8.") from None
    names = [name for name, _ in given]
    for name, value in given:
        if (field := _PARAMETERS.get(name)) is None:
            if (known := _OTHER_NAMES.get(name)) is not None:
                raise InvalidParamsError(f"{name}: there is no such parameter; write {known}.")
            continue
        if names.count(name) > 1:
            raise InvalidParamsError(f"{name} is repeated; give it once.")
        if (expected := _expected(field, value)) is not None:
            raise InvalidParamsError(f"{name}={value!r}: give {expected}.")


_PARAMETERS: dict[str, Any] = {field.json_name: field for field in types.ListTasksRequest.DESCRIPTOR.fields}
"""Query parameters by name: a parameter of another request is one of these too."""
_OTHER_NAMES = {field.name: name for name, field in _PARAMETERS.items() if field.name != name}
_LEAST = {"pageSize": 1, "historyLength": 0}
"""Query parameter → its smallest number."""
_MOST = 2**31 - 1


def _expected(field: Any, value: str) -> str | None:
    """Return a description of valid values of a query parameter, if `value` is invalid; None if it is valid."""
    match field.type:
        case FieldDescriptor.TYPE_INT32:
            least = _LEAST[field.json_name]
            valid = re.fullmatch("[0-9]{1,10}", value) is not None and least <= int(value) <= _MOST
            return None if valid else f"a whole number from {least}"
        case FieldDescriptor.TYPE_BOOL:
            return None if value.lower() in ("true", "false") else "true or false"
        case FieldDescriptor.TYPE_ENUM:
            return None if value in _STATES else f"one of {', '.join(types.TaskState.keys())}"
        case FieldDescriptor.TYPE_MESSAGE:
            try:
                Timestamp().FromJsonString(value)
            except ValueError:
                return "a time such as 2026-01-31T12:00:00Z"
            return None
        case _:
            return "text without NUL" if "\x00" in value else None


_STATES = {*types.TaskState.keys(), *map(str, types.TaskState.values())}
"""Names and numbers of the states of tasks, as a query may have them."""


def check_listing(params: types.ListTasksRequest) -> None:
    """Check a request to list tasks: the state, the page token and the conversation's id.

    Raises `InvalidParamsError` for an unknown state or token, and for an id with NUL.
    """
    if params.status not in types.TaskState.values():
        raise _unknown_state(params.status)
    if "\x00" in params.context_id:
        raise InvalidParamsError(message="contextId holds a NUL character; send an id without it.")
    if not params.page_token:
        return
    try:
        cursor = decode_list_tasks_cursor(params.page_token)
    except RecursionError:
        raise _unknown_token() from None
    # An earlier version of the SDK made tokens of the id alone.
    task_id = decode_page_token(params.page_token) if cursor is None else cursor.task_id
    time_ns = 0 if cursor is None or cursor.timestamp_ns is None else cursor.timestamp_ns
    if "\x00" in task_id or find_lone_surrogate(task_id) is not None or not 0 <= time_ns < 2**63:
        raise _unknown_token()


def _unknown_token() -> InvalidParamsError:
    """Return the error for a page token that this server did not make."""
    return InvalidParamsError("The page token is unknown; send the nextPageToken of an earlier answer.")


def _unknown_state(status: object) -> InvalidParamsError:
    """Return the error for an unknown state of tasks."""
    return InvalidParamsError(f"status={status!r}: give one of {', '.join(types.TaskState.keys())}.")


def refused_over_jsonrpc(request: Any, error: A2AError) -> Response:
    """Return the JSON-RPC error for a refused request, with its id if that is known.

    An invalid request has status 400, any other 200.
    """
    id_ = request.get("id") if isinstance(request, dict) else None
    known = isinstance(id_, int | str) and find_lone_surrogate(id_) is None
    code = JSON_RPC_ERROR_CODE_MAP[type(error)]
    shown = {"code": code, "message": error.message, "data": build_error_details(error)}
    status = 400 if isinstance(error, InvalidRequestError) else 200
    return JSONResponse({"jsonrpc": "2.0", "id": id_ if known else None, "error": shown}, status)


def refused_over_rest(request: Any, error: A2AError) -> Response:
    """Return the HTTP+JSON error for a refused request, whose JSON is not used.

    Invalid JSON counts as an invalid request.
    """
    # The SDK has no HTTP status for invalid JSON.
    known = InvalidRequestError(error.message) if isinstance(error, JSONParseError) else error
    payload = build_rest_error_payload(known)
    return JSONResponse(payload, payload["error"]["code"])


class RefusedStreams:
    """ASGI middleware that makes an `A2AError` before the first event of a stream an error response.

    The SDK's streams of A2A 0.3 over REST send status 200 first, so that a refusal breaks the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; an exception after the first event, and any but an `A2AError`, passes on."""
        start: ASGIMessage | None = None
        has_begun = False

        async def send_with_body(message: ASGIMessage) -> None:
            """Send a message; the start of the response is held back until its first body."""
            nonlocal start, has_begun
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None and not has_begun:
                has_begun = True
                await send(start)
            await send(message)

        try:
            await self._app(scope, receive, send_with_body)
        except Exception as error:
            refusal = next((each for each in leaves(error) if isinstance(each, A2AError)), None)
            if has_begun or refusal is None:
                raise
            await refused_over_rest(None, refusal)(scope, receive, send)


def check_required_fields(params: types.SendMessageRequest) -> None:
    """Check a message's required fields and its role, without walking its metadata and data.

    Raises the SDK's `InvalidParamsError` for a missing field, and for the role of the agent.
    """
    bare = types.SendMessageRequest()
    if params.HasField("configuration"):
        bare.configuration.CopyFrom(params.configuration)
    if params.HasField("message"):
        message = params.message
        # A part has no required field, so one placeholder stands for all parts.
        parts = [types.Part(text="x")] if message.parts else []
        bare.message.CopyFrom(types.Message(message_id=message.message_id, role=message.role, parts=parts))
    validate_proto_required_fields(bare)
    if params.message.role == types.Role.ROLE_AGENT:
        raise InvalidParamsError(
            message="message.role is ROLE_AGENT, which marks messages of the server to its client; send ROLE_USER."
        )


STILL_RUNNING = (
    "The task is running. Send the message when it has ended, or without its id to continue the conversation."
)
_MAX_DEPTH = 25
"""Nesting levels of a message's JSON. Protobuf parses 100 levels; a JSON level takes three, and the task adds some."""


def _check(params: types.SendMessageRequest) -> None:
    """Raise `InvalidParamsError` for values of a message that cannot be stored.

    These are NUL in an id, credentials in metadata, an empty part, numbers that are not finite, and more than 25
    levels.
    """
    message = params.message
    for name, text in (("messageId", message.message_id), ("contextId", message.context_id)):
        if "\x00" in text:
            raise InvalidParamsError(message=f"message.{name} holds a NUL character; send an id without it.")
    values: list[tuple[str, Struct | Value]] = [("metadata", params.metadata), ("message.metadata", message.metadata)]
    if "credentials" in params.metadata or "credentials" in message.metadata:
        raise InvalidParamsError(
            message="Credentials are not taken from a message, which is stored with its task; send them in the headers "
            "that the server's credential_headers name."
        )
    for number, part in enumerate(message.parts):
        if part.WhichOneof("content") is None:
            raise InvalidParamsError(message=f"message.parts[{number}] is empty; a part is text, raw, url or data.")
        values.append((f"message.parts[{number}].metadata", part.metadata))
        if part.HasField("data"):
            values.append((f"message.parts[{number}].data", part.data))
    for path, value in values:
        for number_value, depth in _numbers(value):
            if not math.isfinite(number_value):
                raise InvalidParamsError(message=f"{path} holds NaN or Infinity, which JSON has no numbers for.")
            if depth > _MAX_DEPTH:
                raise InvalidParamsError(message=f"{path} is nested more than {_MAX_DEPTH} levels deep.")


def _numbers(root: Struct | Value) -> Iterator[tuple[float, int]]:
    """Yield the number of each nested value (0.0 for other types) with its depth, from 0."""
    pending: list[tuple[Struct | Value, int]] = [(root, 0)]
    while pending:
        value, depth = pending.pop()
        yield (value.number_value if isinstance(value, Value) else 0.0), depth
        children: Iterable[Struct | Value] = ()
        if isinstance(value, Struct):
            children = value.fields.values()
        elif value.HasField("struct_value"):
            children = value.struct_value.fields.values()
        elif value.HasField("list_value"):
            children = value.list_value.values
        pending.extend((child, depth + 1) for child in children)


def _refused_text(request: Any) -> InvalidRequestError | None:
    """Return the error for a request with a lone surrogate in its text; None for any other request."""
    place = find_lone_surrogate(request)
    if place is None:
        return None
    return InvalidRequestError(
        f"{place or 'The request'} holds a lone surrogate, which is half of a character (e.g. \\ud800). Send whole "
        "characters."
    )


def _refused_params(request: Any) -> InvalidParamsError | None:
    """Return the error for a history length that is no int32, or for an unknown state of tasks to list; else None.

    The SDK answers both with an internal error.
    """
    params = request.get("params", request) if isinstance(request, dict) else None
    if not isinstance(params, dict):
        return None
    for holder in (params, params.get("configuration")):
        given = holder.get("historyLength") if isinstance(holder, dict) else None
        if isinstance(given, int) and not 0 <= given <= _MOST:
            return InvalidParamsError(message=f"historyLength={given}: give a whole number from 0.")
    status = params.get("status") if request.get("method") == "ListTasks" else None
    return _unknown_state(status) if isinstance(status, str) and status not in _STATES else None
