"""What a client's message may hold: what neither JSON nor a database can is refused before a task is made of it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore
from a2a.types import Message, Part, SendMessageRequest, Task
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import InvalidParamsError, PushNotificationNotSupportedError, UnsupportedOperationError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.json_format import ParseError
from google.protobuf.struct_pb2 import Struct, Value
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from graph_agent._internal.json_bounds import JsonBounds, JsonBoundsError, JsonMeter
from graph_agent.a2a.server.credentials import brought_by
from graph_agent.a2a.server.other_processes import Elsewhere
from graph_agent.a2a.server.store import is_running
from graph_agent.a2a.server.text import Refusal, refusal_of_text


class CheckedRequests(SimpleRequestContextBuilder):
    """Makes the context of a request, unless its message cannot be kept, or its task takes none now.

    Args:
        notifies: Whether the server sends push notifications.
        tasks: The tasks that messages name.
        at_work: Whether this process works on the task of an id.
        elsewhere: The tasks of other processes, which take no message here.
    """

    def __init__(
        self, *, notifies: bool, tasks: TaskStore, at_work: Callable[[str], bool], elsewhere: Elsewhere
    ) -> None:
        super().__init__()
        self._notifies = notifies
        self._tasks = tasks
        self._at_work = at_work
        self._elsewhere = elsewhere

    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: Task | None = None,
    ) -> RequestContext:
        """As the SDK's; a message that names its task alone belongs to that task's conversation.

        Raises:
            InvalidParamsError: When a number of its metadata or data is not finite, they are nested too deeply, an id
                holds a NUL, a part is empty, its metadata brings credentials, or a header of one is there twice.
            PushNotificationNotSupportedError: When it asks for notifications that nobody would send.
            UnsupportedOperationError: When its task is at work, in this process or another.
        """
        if params is not None:
            _check(params)
            brought_by(context)
            if params.configuration.HasField("task_push_notification_config") and not self._notifies:
                raise PushNotificationNotSupportedError
            named = await self._tasks.get(task_id, context) if task_id else None
            if named is not None:
                await self._check_idle(named, context)
                # The SDK makes a new conversation where the message names none.
                context_id = named.context_id
        return await super().build(context, params, task_id, context_id, task)

    async def _check_idle(self, task: Task, context: ServerCallContext) -> None:
        if is_running(task) and (self._at_work(task.id) or await self._elsewhere.has(task.id, context)):
            raise UnsupportedOperationError(message=AT_WORK)


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """How much one A2A request may hold: the SDK spends tens of microseconds of the event loop on each value."""

    values: int = 5_000
    """JSON values: objects, arrays, strings, numbers, `true`, `false` and `null`; keys do not count."""
    depth: int = 100
    """Levels of objects and arrays inside one another."""
    parts: int = 200
    """Parts of one message."""
    characters: int = 1_000_000
    """Characters of all strings and keys together, the bytes of files aside, which the SDK does not search."""


class BoundedRequests:
    """An endpoint that is reached by requests within their bounds alone, in UTF-8.

    The SDK takes a request in another encoding for a failure of its own.

    Args:
        app: The endpoint.
        bounds: The bounds.
        refusal: Makes the response to any other request, from the reason.
        text_refusal: Makes the response to one with half a character in its text.
    """

    def __init__(
        self, app: ASGIApp, bounds: RequestBounds, refusal: Callable[[str], Response], text_refusal: Refusal
    ) -> None:
        self._app = app
        self._bounds = bounds
        self._refusal = refusal
        self._text_refusal = text_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As any ASGI application."""
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = bytearray(), True
        meter = JsonMeter(JsonBounds(self._bounds.values, self._bounds.depth))
        try:
            while more:
                told = await receive()
                if told["type"] != "http.request":
                    return  # the client has gone
                meter.feed(told.get("body", b""))
                body += told.get("body", b"")
                more = told.get("more_body", False)
            request = _decoded(body)
            self._check_parts(request)
            self._check_characters(request)
        except JsonBoundsError as error:
            await self._refusal(str(error))(scope, receive, send)
            return
        if (refused := refusal_of_text(request, self._text_refusal)) is not None:
            await refused(scope, receive, send)
            return
        # The SDK parses a large body once more; others are served in between.
        await asyncio.sleep(0)
        waiting: list[Any] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> Any:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, again, send)

    def _check_parts(self, request: Any) -> None:
        params = request.get("params", request) if isinstance(request, dict) else None
        message = params.get("message") if isinstance(params, dict) else None
        if not isinstance(message, dict):
            return
        # HTTP+JSON of version 0.3 names them `content`.
        amount = max(len(parts) for name in ("parts", "content") if isinstance(parts := message.get(name, []), list))
        if amount > self._bounds.parts:
            raise JsonBoundsError(
                f"The message has {amount} parts; it may have {self._bounds.parts}. Join texts, or send more messages."
            )

    def _check_characters(self, request: Any) -> None:
        amount = sum(map(len, _strings(request)))
        if amount > self._bounds.characters:
            raise JsonBoundsError(
                f"The request has {amount} characters of text; it may have {self._bounds.characters}, the bytes of "
                "files aside. Send a shorter text, or the text as a file."
            )


def _strings(request: Any) -> Iterator[str]:
    """The strings and keys of a JSON value, without the base64 of files."""
    waiting = [request]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            yield from value
            waiting.extend(item for key, item in value.items() if not (key in _FILE_BYTES and isinstance(item, str)))


_FILE_BYTES = frozenset({"raw", "bytes", "fileWithBytes", "file_with_bytes"})
"""Where the protocol's versions have the base64 of a file."""


def _decoded(body: bytes | bytearray) -> Any:
    """The JSON value of a body; None where it is none, which the SDK refuses.

    Raises:
        JsonBoundsError: When it is not UTF-8.
    """
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError:
        raise JsonBoundsError("The request is not JSON in UTF-8.") from None
    except ValueError:
        return None


def refused_over_jsonrpc(reason: str) -> Response:
    """JSON-RPC's error for a request that is not read."""
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": reason}})


def refused_over_rest(reason: str) -> Response:
    """HTTP+JSON's error for a request that is not read."""
    return JSONResponse(build_rest_error_payload(ParseError(reason)), 400)


def check_required_fields(params: SendMessageRequest) -> None:
    """Check a message for what the protocol requires, without a walk through its metadata and data.

    Raises:
        InvalidParamsError: When a field is missing; as the SDK's.
    """
    bare = SendMessageRequest()
    if params.HasField("configuration"):
        bare.configuration.CopyFrom(params.configuration)
    if params.HasField("message"):
        given = params.message
        # A part has no required field.
        parts = [Part(text="x")] if given.parts else []
        bare.message.CopyFrom(Message(message_id=given.message_id, role=given.role, parts=parts))
    validate_proto_required_fields(bare)


AT_WORK = "The task is at work. Send the message when it has ended, or without its id to go on with the conversation."
_DEEPEST = 25
"""Levels of a message's JSON; protobuf reads a hundred of its own, each of these is three, and a task adds some."""


def _check(params: SendMessageRequest) -> None:
    message = params.message
    for name, text in (("messageId", message.message_id), ("contextId", message.context_id)):
        if "\x00" in text:
            raise InvalidParamsError(message=f"message.{name} holds a NUL character; send an id without it.")
    told: list[tuple[str, Struct | Value]] = [("metadata", params.metadata), ("message.metadata", message.metadata)]
    if "credentials" in params.metadata or "credentials" in message.metadata:
        raise InvalidParamsError(
            message="Credentials are not taken from a message, which is stored with its task; send them in the headers "
            "that the server's credential_headers name."
        )
    for number, part in enumerate(message.parts):
        if part.WhichOneof("content") is None:
            raise InvalidParamsError(message=f"message.parts[{number}] is empty; a part is text, raw, url or data.")
        told.append((f"message.parts[{number}].metadata", part.metadata))
        if part.HasField("data"):
            told.append((f"message.parts[{number}].data", part.data))
    for place, value in told:
        for amount, depth in _numbers(value):
            if not math.isfinite(amount):
                raise InvalidParamsError(message=f"{place} holds NaN or Infinity, which JSON has no numbers for.")
            if depth > _DEEPEST:
                raise InvalidParamsError(message=f"{place} is nested more than {_DEEPEST} levels deep.")


def _numbers(given: Struct | Value) -> Iterator[tuple[float, int]]:
    """Each value's number, zero where it is none, and how deep it stands."""
    waiting: list[tuple[Struct | Value, int]] = [(given, 0)]
    while waiting:
        value, depth = waiting.pop()
        yield (value.number_value if isinstance(value, Value) else 0.0), depth
        inside: Iterable[Struct | Value] = ()
        if isinstance(value, Struct):
            inside = value.fields.values()
        elif value.HasField("struct_value"):
            inside = value.struct_value.fields.values()
        elif value.HasField("list_value"):
            inside = value.list_value.values
        waiting.extend((one, depth + 1) for one in inside)
