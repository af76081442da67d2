"""One task of a remote agent, followed from the message that begins it to its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import anyio
from a2a.client import A2AClientError, Client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatus,
)
from google.protobuf.json_format import MessageToDict

from graph_agent.a2a.client.reply import Artifacts, text_of_message
from graph_agent.a2a.client.stream import EventStream

CANCEL_S = 3.0
"""Seconds that telling the other agent to stop may take; our own run waits for it no longer."""
_RECONNECTS = 2
_FIRST_POLL_S, _LONGEST_POLL_S = 0.05, 2.0
_ASKED_MODES = ["text/plain", "text/markdown", "application/json", "image/png", "image/jpeg"]

RUNNING = frozenset({TaskState.TASK_STATE_UNSPECIFIED, TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING})


class RemoteTimeoutError(Exception):
    """The remote agent was silent for too long, or the run's own deadline came."""


class FollowedTask:
    """What is known of a remote task, kept up to date while it runs.

    Args:
        client: The SDK's client for the agent.
        streams: Whether the agent streams.
        timeout_s: Seconds the agent may be silent; whatever it sends is a heart-beat.
        deadline_s: Seconds for all of it; None for no limit.
        tell: Takes what the agent says while it works.
        task_id: A task that has begun already; empty for none.
    """

    def __init__(
        self,
        client: Client,
        *,
        streams: bool,
        timeout_s: float,
        deadline_s: float | None,
        tell: Callable[[str], None],
        task_id: str = "",
    ) -> None:
        self._client = client
        self._streams = streams
        self._timeout_s = timeout_s
        self._deadline = math.inf if deadline_s is None else anyio.current_time() + deadline_s
        self._clock = anyio.CancelScope()
        self._unheard: EventStream | None = None
        self._tell = tell
        self.id = task_id
        self.context_id = ""
        self.status = TaskStatus()
        self.artifacts = Artifacts()
        self.metadata: dict[str, Any] = {}
        self.told_to_stop = False
        """Whether the agent has heard that it is to stop."""
        self.message: Message | None = None
        """The answer of an agent that makes no task of it."""

    @property
    def running(self) -> bool:
        """Whether the agent is still at work."""
        return self.message is None and self.status.state in RUNNING

    @property
    def said(self) -> str:
        """What the task's status says in words; empty for nothing."""
        return text_of_message(self.status.message) if self.status.HasField("message") else ""

    async def begin(self, message: Message) -> None:
        """Send a message and follow the task until it ends or asks a person.

        Raises:
            RemoteTimeoutError: When the agent was silent for too long.
            A2AClientError: When it could not be reached, or what it said could not be understood.
        """
        configuration = SendMessageConfiguration(
            accepted_output_modes=_ASKED_MODES, return_immediately=not self._streams
        )
        request = SendMessageRequest(message=message, configuration=configuration)
        await self._timed(lambda: self._client.send_message(request))

    async def go_on(self, message: Message) -> None:
        """Answer a task that asked, unless it has its answer already: a run may be resumed twice.

        Raises:
            As `begin`.
        """
        await self._timed(None)
        if self.status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
            self.status = TaskStatus()
            await self.begin(message)
        elif self.running:
            await self._timed(self._subscribe)

    async def cancel(self) -> None:
        """Tell the agent to stop, if it may be at work; never raises, and is done within `CANCEL_S`.

        An agent that has said nothing yet is waited for: its first event names the task.
        """
        # Shielded, because most often our own run is being cancelled.
        with anyio.move_on_after(CANCEL_S, shield=True), suppress(Exception):
            if self._unheard is not None and not self.id:
                self._take(await anext(self._unheard))
            if self.id and self.message is None and (self.running or self._waits):
                task = await self._client.cancel_task(CancelTaskRequest(id=self.id))
                # Its state is that of the cancellation; what it tells of itself is all that will be heard.
                self.metadata |= MessageToDict(task.metadata)
                self.told_to_stop = True
        await self._leave()

    @property
    def _waits(self) -> bool:
        return self.status.state in (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)

    async def _timed(self, stream: Callable[[], AsyncIterator[StreamResponse]] | None) -> None:
        with anyio.CancelScope() as self._clock:
            self._beat()
            if stream is None:
                await self._look()
            else:
                await self._follow(stream)
        if self._clock.cancelled_caught:
            raise RemoteTimeoutError

    async def _follow(self, stream: Callable[[], AsyncIterator[StreamResponse]]) -> None:
        for attempt in range(_RECONNECTS + 1):
            try:
                await self._read(stream())
                break
            except A2AClientError:
                # The connection may be gone, and the task still there.
                if not self.id or attempt == _RECONNECTS:
                    raise
                await self._look()
                if not self.running:
                    return
                stream = self._subscribe if self._streams else self._nothing
        pause = _FIRST_POLL_S
        while self.running and self.id:
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_POLL_S)
            before = self.status
            await self._look()
            if self.status != before:
                self._beat()

    async def _read(self, stream: AsyncIterator[StreamResponse]) -> None:
        events = self._unheard = EventStream(stream)
        try:
            async for event in events:
                self._beat()
                self._take(event)
                if not self.running:
                    break
        except asyncio.CancelledError:
            # What the agent says next may name the task that `cancel` is to stop.
            if self.id:
                await self._leave()
            raise
        except BaseException:
            await self._leave()
            raise
        await self._leave()

    async def _leave(self) -> None:
        if self._unheard is not None:
            stream, self._unheard = self._unheard, None
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def _look(self) -> None:
        self._take_task(await self._client.get_task(GetTaskRequest(id=self.id)))

    def _subscribe(self) -> AsyncIterator[StreamResponse]:
        return self._client.subscribe(SubscribeToTaskRequest(id=self.id))

    async def _nothing(self) -> AsyncIterator[StreamResponse]:
        return
        yield

    def _take(self, event: StreamResponse) -> None:
        match event.WhichOneof("payload"):
            case "task":
                self._take_task(event.task)
            case "message":
                self.message = event.message
                self.context_id = event.message.context_id
            case "status_update":
                update = event.status_update
                self.id, self.context_id = update.task_id or self.id, update.context_id or self.context_id
                self.metadata |= MessageToDict(update.metadata)
                self._take_status(update.status)
            case "artifact_update":
                self.artifacts.add(event.artifact_update)
            case _:
                pass

    def _take_task(self, task: Task) -> None:
        self.id, self.context_id = task.id or self.id, task.context_id or self.context_id
        self.artifacts.set(task.artifacts)
        self.metadata |= MessageToDict(task.metadata)
        self._take_status(task.status)

    def _take_status(self, status: TaskStatus) -> None:
        news = status != self.status
        self.status = status
        if news and self.running and self.said:
            self._tell(self.said)

    def _beat(self) -> None:
        """Whatever the agent sends gives it its time anew, within the deadline."""
        self._clock.deadline = min(anyio.current_time() + self._timeout_s, self._deadline)
