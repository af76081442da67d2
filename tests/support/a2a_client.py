"""A client of the A2A SDK, and short forms of what it receives."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import (
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)
from a2a.utils.errors import MethodNotFoundError

EXTENSION = "urn:graph-agent:delegation:1"
"""URI of the extension by which agents of this package exchange budgets and usage."""
BINDINGS = [("1.0", "JSONRPC"), ("1.0", "HTTP+JSON"), ("0.3", "JSONRPC"), ("0.3", "HTTP+JSON")]
"""Every protocol version and binding that a served agent supports."""
WAYS = [(version, binding, streaming) for version, binding in BINDINGS for streaming in (False, True)]
"""These, each without and with streaming."""


@asynccontextmanager
async def a2a_client(
    url: str, key: str | None = None, *, streaming: bool = True, version: str = "1.0", binding: str = "JSONRPC"
) -> AsyncIterator[Client]:
    """A client of the SDK, limited to one protocol version and one binding.

    Args:
        url: The server's address.
        key: Sent as a bearer token; None if there is none.
        streaming: Whether it asks for streams.
        version: Protocol version.
        binding: Protocol binding.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(trust_env=False, verify=False, headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        kept = [
            each
            for each in card.supported_interfaces
            if (each.protocol_version, each.protocol_binding) == (version, binding)
        ]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(kept)
        config = ClientConfig(httpx_client=http, streaming=streaming, supported_protocol_bindings=[binding])
        yield ClientFactory(config).create(card)


def message_request(text: str, task: Task | None = None, **fields: Any) -> SendMessageRequest:
    """A request with one text, which starts a task or continues the given one."""
    sent = Message(message_id=f"m-{text}", role=Role.ROLE_USER, parts=[Part(text=text)], **fields)
    if task is not None:
        sent.task_id, sent.context_id = task.id, task.context_id
    return SendMessageRequest(message=sent)


def refusal(kind: type[Exception], version: str, binding: str) -> tuple[type[Exception], ...]:
    """The exceptions of the SDK's client for a refusal; over HTTP+JSON, that of 0.3 reads only the status."""
    return (A2AClientError, MethodNotFoundError) if (version, binding) == ("0.3", "HTTP+JSON") else (kind,)


async def send(client: Client, request: SendMessageRequest) -> Task:
    """Send a request without streaming, and return its task."""
    events = [event async for event in client.send_message(request)]
    return events[-1].task


def event_summary(event: StreamResponse) -> tuple[Any, ...]:
    """One event of a stream, as a tuple."""
    match event.WhichOneof("payload"):
        case "task":
            return ("task", TaskState.Name(event.task.status.state))
        case "status_update":
            text = "".join(part.text for part in event.status_update.status.message.parts)
            return (TaskState.Name(event.status_update.status.state), text)
        case "artifact_update":
            update = event.artifact_update
            return ("artifact", update.append, update.last_chunk, [part.text for part in update.artifact.parts])
        case other:
            return (other,)


def state_name(task: Task) -> str:
    """A task's state, by name."""
    return TaskState.Name(task.status.state)


def artifact_texts(task: Task) -> list[str]:
    """The text of a task's artifacts."""
    return [part.text for artifact in task.artifacts for part in artifact.parts]


async def send_text(client: Client, text: str, context_id: str = "") -> Task:
    """Stream a message to its end, and return its task as the server stores it."""
    message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)], context_id=context_id)
    task = Task()
    async for event in client.send_message(SendMessageRequest(message=message)):
        if event.HasField("task"):
            task.CopyFrom(event.task)
    return await client.get_task(GetTaskRequest(id=task.id))


def task_text(task: Task) -> str:
    """The text of a task's artifacts; its status if there is none."""
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts) or str(task.status)


class WatchedTask:
    """A running task, and the events its client has received."""

    def __init__(self, client: Client, request: Any) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._known: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.over = asyncio.create_task(self._watch(client.send_message(request)))
        self.over.add_done_callback(lambda _: self._known.cancel())

    async def known(self) -> str:
        """Wait for its id, which the first event carries."""
        return await self._known

    async def _watch(self, stream: AsyncIterator[Any]) -> None:
        async for event in stream:
            if not self._known.done():
                self._known.set_result(event.task.id)
            self.seen.append(event_summary(event))
