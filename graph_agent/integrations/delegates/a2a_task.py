"""Follows one task of a remote agent from its first message to its end.

The task is followed by events that the agent streams, or by polling.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
from a2a.client import A2AClientError, Client
from a2a.types import (
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)
from google.protobuf.json_format import MessageToDict

from graph_agent.integrations.delegates.a2a_parts import text_of_parts

_MAX_QUEUED = 64
"""Maximum number of queued events; while the queue is full nothing is read, which slows the agent down."""


class TaskEvents:
    """Reads the events of one request, in order, in an asyncio task of its own; iterate over it to receive them.

    The code that opens it must close it. An error of the request is raised by the iteration.
    """

    def __init__(self, stream: AsyncIterator[StreamResponse]) -> None:
        self._events: asyncio.Queue[StreamResponse | BaseException | None] = asyncio.Queue(_MAX_QUEUED)
        # A single task drives the generator from start to end, as it would lose its context variables otherwise.
        self._reader = asyncio.create_task(self._read(stream))

    def __aiter__(self) -> TaskEvents:
        return self

    async def __anext__(self) -> StreamResponse:
        event = await self._events.get()
        if event is None:
            raise StopAsyncIteration
        if isinstance(event, BaseException):
            raise event
        return event

    async def aclose(self) -> None:
        """Stop reading, and wait until the response is closed."""
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def _read(self, stream: AsyncIterator[StreamResponse]) -> None:
        """Queue the events of a stream, and at its end the error, or None. The stream is closed in any case."""
        last: BaseException | None = None
        try:
            async for event in stream:
                await self._events.put(event)
        except Exception as error:  # noqa: BLE001 - raised by `__anext__` in the waiting task
            last = error
        finally:
            generator: Any = stream
            await generator.aclose()
        await self._events.put(last)


REMOTE_CANCEL_S = 3.0
"""Maximum seconds that a run waits for a remote task to be cancelled."""
_RECONNECTS = 2
"""Maximum times that a lost event stream is opened again."""
_FIRST_POLL_S, _LONGEST_POLL_S = 0.05, 2.0
"""Seconds before the first and the later polls of a task."""
_ACCEPTED_MODES = ["text/plain", "text/markdown", "application/json", "image/png", "image/jpeg"]

RUNNING = frozenset({TaskState.TASK_STATE_UNSPECIFIED, TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING})
"""States of a task that has neither ended nor asked."""


class RemoteTimeoutError(Exception):
    """Raised when the remote agent sent nothing for too long, or the run's own deadline has passed."""


class _Artifacts:
    """The artifacts of a task, collected from its updates."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}

    def set(self, artifacts: Sequence[Artifact]) -> None:
        """Replace all artifacts by the given ones."""
        self._parts = {artifact.artifact_id: list(artifact.parts) for artifact in artifacts}

    def add(self, update: TaskArtifactUpdateEvent) -> None:
        """Apply one update to the artifact that it names.

        If the update is to append and the artifact is known, its parts are appended, and text is joined to a preceding
        text part. Otherwise the update adds or replaces the artifact.
        """
        new = list(update.artifact.parts)
        known = self._parts.get(update.artifact.artifact_id)
        if not update.append or known is None:
            self._parts[update.artifact.artifact_id] = new
            return
        for part in new:
            if known and part.WhichOneof("content") == known[-1].WhichOneof("content") == "text":
                known[-1] = Part(text=known[-1].text + part.text)
            else:
                known.append(part)

    def parts(self) -> list[Part]:
        """Return the parts of all artifacts, in order."""
        return [part for parts in self._parts.values() for part in parts]


class FollowedTask:
    """Sends messages to a remote agent's task, and has the state of the task as last reported.

    Args:
        client: The A2A client.
        streams: Whether the agent supports streaming; otherwise the task is polled.
        timeout_s: Seconds without any event after which the agent counts as unresponsive.
        deadline_s: Seconds for the whole task; None for no limit.
        on_progress: Called with the text of each status update while the task runs.
        task_id: Id of an existing task; empty for a new one.
    """

    def __init__(
        self,
        client: Client,
        *,
        streams: bool,
        timeout_s: float,
        deadline_s: float | None,
        on_progress: Callable[[str], None],
        task_id: str = "",
    ) -> None:
        self._client = client
        self._streams = streams
        self._timeout_s = timeout_s
        self._deadline = math.inf if deadline_s is None else anyio.current_time() + deadline_s
        self._timeout = anyio.CancelScope()
        self._stream: TaskEvents | None = None
        """The open event stream; None without one."""
        self._on_progress = on_progress
        self.id = task_id
        """Id of the task; empty until the agent has named it."""
        self.context_id = ""
        """Id of the conversation; empty until the agent has named it."""
        self.status = TaskStatus()
        """The status as last reported."""
        self.artifacts = _Artifacts()
        self.metadata: dict[str, Any] = {}
        """The metadata of all updates, merged."""
        self.cancel_confirmed = False
        """Whether the agent has accepted the request to cancel the task."""
        self.message: Message | None = None
        """The answer of an agent that answers without creating a task; otherwise None."""

    @property
    def running(self) -> bool:
        """Whether the task runs, as last reported."""
        return self.message is None and self.status.state in RUNNING

    @property
    def text(self) -> str:
        """Text of the task's status message; empty without one."""
        return text_of_parts(self.status.message.parts) if self.status.HasField("message") else ""

    async def start(self, message: Message) -> None:
        """Send a message, and follow the task until it ends or asks a question.

        Raises:
            RemoteTimeoutError: The agent sent nothing for too long, or the deadline has passed.
            A2AClientError: The agent could not be reached, or its response could not be parsed.
        """
        await self._with_timeout(lambda: self._send(message, return_immediately=not self._streams))

    async def begin(self, message: Message) -> None:
        """Send a message, and return as soon as the agent has named its task, which then runs on, or has answered
        without one.

        Raises:
            RemoteTimeoutError: The agent sent nothing for too long, or the deadline has passed.
            A2AClientError: The agent could not be reached, or its response could not be parsed.
            StopAsyncIteration: The agent ended its response before that.
        """
        with anyio.CancelScope() as self._timeout:
            self._reset_timeout()
            self._stream = TaskEvents(self._send(message, return_immediately=True))
            try:
                while not self.id and self.message is None:
                    self._apply(await anext(self._stream))
            finally:
                await self._close_stream()
        if self._timeout.cancelled_caught:
            raise RemoteTimeoutError

    async def watch(self, *, until_end: bool) -> None:
        """Read the state of the task; with `until_end`, follow it until it ends or asks a question.

        Raises:
            RemoteTimeoutError: The agent sent nothing for too long, or the deadline has passed.
            A2AClientError: The agent could not be reached, or does not have the task.
        """
        await self._with_timeout(None)
        if until_end and self.running:
            await self._with_timeout(self._subscribe)

    def _send(self, message: Message, *, return_immediately: bool) -> AsyncIterator[StreamResponse]:
        """Return the events of a message that is sent at the first iteration."""
        configuration = SendMessageConfiguration(
            accepted_output_modes=_ACCEPTED_MODES, return_immediately=return_immediately
        )
        return self._client.send_message(SendMessageRequest(message=message, configuration=configuration))

    async def answer(self, message: Message) -> None:
        """Send the answer if the task still waits for one, and follow the task until it ends or asks again.

        A task that runs already is only followed, and one that has ended is only read.

        Raises:
            RemoteTimeoutError: The agent sent nothing for too long, or the deadline has passed.
            A2AClientError: The agent could not be reached, or does not have the task.
        """
        await self._with_timeout(None)
        if self.status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
            self.status = TaskStatus()
            await self.start(message)
        elif self.running:
            await self._with_timeout(self._subscribe)

    async def cancel(self) -> None:
        """Cancel the task if it runs or waits for an answer or an authentication, add the metadata of the reply, which
        has the usage, to `metadata`, and close the stream.

        Without a task id it first waits for the agent's next event, which has the id. Never raises, and returns within
        `REMOTE_CANCEL_S` seconds, even if the caller is cancelled. Sets `cancel_confirmed` if the agent has accepted.
        """
        # Shielded, because usually our own run is being cancelled.
        with anyio.move_on_after(REMOTE_CANCEL_S, shield=True), suppress(Exception):
            if self._stream is not None and not self.id:
                self._apply(await anext(self._stream))
            if self.id and self.message is None and (self.running or self._is_waiting):
                task = await self._client.cancel_task(CancelTaskRequest(id=self.id))
                # Only the metadata (usage) is taken: the state is that of the cancellation, and no further event comes.
                self.metadata |= MessageToDict(task.metadata)
                self.cancel_confirmed = True
        await self._close_stream()

    @property
    def _is_waiting(self) -> bool:
        """Whether the task waits for an answer or an authentication."""
        return self.status.state in (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)

    async def _with_timeout(self, stream: Callable[[], AsyncIterator[StreamResponse]] | None) -> None:
        """Follow the events of a new stream; for None, only read the task.

        Raises `RemoteTimeoutError` if the agent sends nothing for too long, or the deadline has passed, and
        `A2AClientError`.
        """
        with anyio.CancelScope() as self._timeout:
            self._reset_timeout()
            if stream is None:
                await self._refresh()
            else:
                await self._follow(stream)
        if self._timeout.cancelled_caught:
            raise RemoteTimeoutError

    async def _follow(self, stream: Callable[[], AsyncIterator[StreamResponse]]) -> None:
        """Follow a task until it no longer runs, by a stream; if the stream ends before the task, by polling.

        A stream that is lost is opened again, at most `_RECONNECTS` times, unless the task, which is read first, runs
        no longer; an agent that does not stream is polled instead. While it is polled, only a changed status counts as
        a sign of life. Raises `A2AClientError` if the connection is lost more often or before the task has an id, or if
        the task cannot be read.
        """
        for attempt in range(_RECONNECTS + 1):
            try:
                await self._read(stream())
                break
            except A2AClientError:
                # The connection may be lost while the task still runs.
                if not self.id or attempt == _RECONNECTS:
                    raise
                await self._refresh()
                if not self.running:
                    return
                stream = self._subscribe if self._streams else self._no_events
        pause = _FIRST_POLL_S
        while self.running and self.id:
            await anyio.sleep(pause)
            # Longer and longer, because most tasks end at once and the others take minutes.
            pause = min(pause * 2, _LONGEST_POLL_S)
            before = self.status
            await self._refresh()
            # A task that is polled shows only by a new status that the agent is at work.
            if self.status != before:
                self._reset_timeout()

    async def _read(self, stream: AsyncIterator[StreamResponse]) -> None:
        """Apply the events of a stream until the task no longer runs.

        After a cancellation without a task id, the stream stays open for `cancel`.
        """
        events = self._stream = TaskEvents(stream)
        try:
            async for event in events:
                self._reset_timeout()
                self._apply(event)
                if not self.running:
                    break
        except asyncio.CancelledError:
            # Without an id the stream stays open: `cancel` reads the task's id from the next event.
            if self.id:
                await self._close_stream()
            raise
        except BaseException:
            await self._close_stream()
            raise
        await self._close_stream()

    async def _close_stream(self) -> None:
        """Close the open stream, if any, also while the run is cancelled."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def _refresh(self) -> None:
        """Read the task and apply its state."""
        self._apply_task(await self._client.get_task(GetTaskRequest(id=self.id)))

    def _subscribe(self) -> AsyncIterator[StreamResponse]:
        """Return the further events of the running task."""
        return self._client.subscribe(SubscribeToTaskRequest(id=self.id))

    async def _no_events(self) -> AsyncIterator[StreamResponse]:
        """Yield nothing: for an agent that does not stream."""
        return
        yield  # type: ignore[unreachable]  # a generator function contains a `yield`

    def _apply(self, event: StreamResponse) -> None:
        """Apply one event to the state: a task, a message, a new status, or an artifact; others are ignored.

        A new status changes the ids only if it has them, and its metadata is merged into `metadata`.
        """
        match event.WhichOneof("payload"):
            case "task":
                self._apply_task(event.task)
            case "message":
                self.message = event.message
                self.context_id = event.message.context_id
            case "status_update":
                update = event.status_update
                self.id, self.context_id = update.task_id or self.id, update.context_id or self.context_id
                self.metadata |= MessageToDict(update.metadata)
                self._apply_status(update.status)
            case "artifact_update":
                self.artifacts.add(event.artifact_update)
            case _:
                pass

    def _apply_task(self, task: Task) -> None:
        """Replace the state by that of a whole task."""
        self.id, self.context_id = task.id or self.id, task.context_id or self.context_id
        self.artifacts.set(task.artifacts)
        self.metadata |= MessageToDict(task.metadata)
        self._apply_status(task.status)

    def _apply_status(self, status: TaskStatus) -> None:
        """Replace the status. If it has changed, the task runs, and there is a text, report the text as progress."""
        changed = status != self.status
        self.status = status
        if changed and self.running and self.text:
            self._on_progress(self.text)

    def _reset_timeout(self) -> None:
        """Restart the time limit for silence, which never exceeds the deadline."""
        self._timeout.deadline = min(anyio.current_time() + self._timeout_s, self._deadline)
