"""Checks the message of a request: its values, its task and its required fields."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator

from a2a import types
from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore
from a2a.utils.errors import InvalidParamsError, PushNotificationNotSupportedError, UnsupportedOperationError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.struct_pb2 import Struct, Value

from graph_agent.interfaces.server.a2a.credentials import request_credentials
from graph_agent.interfaces.server.a2a.cross_process import OtherProcesses
from graph_agent.interfaces.server.a2a.store import is_running_task

STILL_RUNNING = (
    "The task is running. Send the message when it has ended, or without its id to continue the conversation."
)
_MAX_DEPTH = 25
"""Maximum nesting of a message's JSON.

Protobuf parses 100 levels; a level of JSON takes three of them, and the task adds some.
"""


class CheckedRequests(SimpleRequestContextBuilder):
    """Builds the SDK's context of a request, and refuses a message that cannot be stored, or whose task is running.

    Args:
        notifies: Whether the server sends push notifications.
        tasks: The stored tasks.
        task_lease: Returns whether this process runs the task with an id.
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
        """Build the SDK's context of a request, after checking its message.

        A message with a task id but no context id belongs to the conversation of the task. A message without both
        begins a conversation. If an authenticated caller repeats the message, it belongs to the same conversation, and
        is run only once.

        Raises an `A2AError` for values that cannot be stored (numbers that are not finite, deep nesting, NUL in an id),
        an empty part, credentials in metadata or twice in headers, the message id of another message, push
        notifications that are not supported, and a task that is running in this process or another. Without `params`
        nothing is checked.
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
    """Return the id of the conversation that a first message begins; None to let the SDK generate one.

    For an authenticated caller, the id is derived from the caller, the tenant and the whole message. An anonymous
    caller gets a new conversation each time: message ids are unique only for one client, and only the id protects the
    conversation.
    """
    if not user:
        return None
    sent = params.message.SerializeToString(deterministic=True)
    named = json.dumps([user, params.tenant, hashlib.sha256(sent).hexdigest()])
    return str(uuid.UUID(bytes=hashlib.sha256(named.encode()).digest()[:16]))


def check_required_fields(params: types.SendMessageRequest) -> None:
    """Check the required fields and the role of a message, without reading its metadata and data, which may be large.

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


def _check(params: types.SendMessageRequest) -> None:
    """Raise `InvalidParamsError` if a message has values that cannot be stored: NUL in an id, credentials in metadata,
    an empty part, numbers that are not finite, or more than 25 levels.
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
    """Yield, for each value in a structure, the structure itself included, its number and its depth, counted from 0.

    The number of a value that is not a number is 0.0.
    """
    # Without recursion, as a client's value may be nested deeply.
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
