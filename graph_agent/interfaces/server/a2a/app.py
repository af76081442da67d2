"""Builds an A2A server for one compiled agent graph: routes to mount in an ASGI application, and push notifications.

In A2A, a *task* is one input of a conversation, and a conversation (`contextId`) is a session of the agent. The SDK is
`a2a-sdk`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import httpx
from a2a import types
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder, ServerCallContextBuilder
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    PushNotificationEvent,
    PushNotificationSender,
    base_push_notification_sender,
)
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore
from a2a.utils.errors import UnsupportedOperationError
from starlette.routing import BaseRoute, Route
from typing_extensions import TypedDict

from graph_agent.base._internal.credential_headers import check_headers
from graph_agent.base._internal.failure_log import exception_text
from graph_agent.base._internal.public_network import PublicTransport, is_public_url
from graph_agent.base.errors import ConfigError
from graph_agent.interfaces.server.a2a import error_responses
from graph_agent.interfaces.server.a2a.conversations import SessionIdOf, session_id_of
from graph_agent.interfaces.server.a2a.credentials import CredentialContext
from graph_agent.interfaces.server.a2a.cross_process import OtherProcesses
from graph_agent.interfaces.server.a2a.executor import HEARTBEAT_S, STEERING, GraphExecutor, SlotFactory, unbounded
from graph_agent.interfaces.server.a2a.listing import check_listing
from graph_agent.interfaces.server.a2a.message_checks import STILL_RUNNING, CheckedRequests, check_required_fields
from graph_agent.interfaces.server.a2a.request_bounds import BoundedRequests, RequestBounds
from graph_agent.interfaces.server.a2a.store import ENDED_STATES, ConversationStore, LiveTaskStore, Stores
from graph_agent.interfaces.server.a2a.streams import bounded_stream
from graph_agent.interfaces.server.settings import REST_PATH, RPC_PATH
from graph_agent.session.compiled import CompiledAgentGraph

_TIMEOUT_S = 10
_CLOSE_S = 2.0
"""Maximum seconds in which queued notifications are sent when the server closes."""
_MAX_QUEUED = 100
"""Number of queued notifications of a task at which further chunks of the answer are dropped."""

CARD_AGE_S = 60
"""Seconds for which a client may cache the agent card."""

_PARKED_S = 1.0
"""Seconds for which a task that waits for an answer stays in memory, because another process may receive the answer."""

UrlCheck = Callable[[str], Awaitable[bool]]
# Unwrapped: the SDK's decorator validates required fields by a walk through all values of metadata and data.
_SEND = inspect.unwrap(DefaultRequestHandler.on_message_send)
_SEND_STREAM = inspect.unwrap(DefaultRequestHandler.on_message_send_stream)


def _shorten(record: logging.LogRecord) -> bool:
    """Filter of the SDK's logger: return False, which drops the record, for the summary of failed notifications.

    Any other record passes; if it has an exception, it is shortened to one line, because the receiver belongs to a
    client and may fail for each notification.
    """
    if record.exc_info and record.exc_info[1] is not None:
        record.msg, record.args = "%s %s", (record.getMessage(), exception_text(record.exc_info[1]))
        record.exc_info = None
    return not record.msg.startswith("Some push notifications failed")


logging.getLogger(base_push_notification_sender.__name__).addFilter(_shorten)


class PushNotifier(PushNotificationSender):
    """Sends the notifications of each task in order, in background tasks, so that the A2A task does not wait for a
    receiver.

    A receiver may take seconds for each notification, or be unreachable. One that falls far behind misses chunks of the
    answer, which is sent whole at the end; it misses no change of the task's state.

    Args:
        configs: The addresses that clients have registered for their tasks.
        url_check: Returns whether an address may be notified. With the default check, connections are also restricted
            to the public network.
    """

    def __init__(self, configs: PushNotificationConfigStore, url_check: Callable[[str], Awaitable[bool]]) -> None:
        # A custom check may allow more than the public network.
        self._http = open_push_http(public_only=url_check is is_public_url)
        self._sender = BasePushNotificationSender(self._http, configs, push_url_validator=url_check)
        self._waiting: dict[str, deque[PushNotificationEvent]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def send_notification(self, task_id: str, event: PushNotificationEvent) -> None:
        """Queue a copy of a notification behind the earlier ones of the task, and start to send the queue. Does not
        wait for that.

        A chunk that continues the answer is dropped if 100 notifications of the task wait already; others never are.
        """
        # A queue for each task: a slow receiver must not delay those of other tasks.
        waiting = self._waiting.setdefault(task_id, deque())
        if len(waiting) >= _MAX_QUEUED and isinstance(event, types.TaskArtifactUpdateEvent) and event.append:
            return
        # Copied: the SDK keeps mutating the event, which may be the task itself.
        waiting.append(deepcopy(event))
        if task_id not in self._sending:
            self._sending[task_id] = asyncio.create_task(self._send(task_id, waiting))

    async def drained(self) -> None:
        """Wait until the queues of all tasks are empty."""
        while self._sending:
            await asyncio.wait(self._sending.values())

    async def aclose(self) -> None:
        """Send the queued notifications for at most 2 seconds, cancel the sending of the rest, and close the HTTP
        client.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.drained()
        if late := list(self._sending.values()):
            for sending in late:
                sending.cancel()
            await asyncio.wait(late)
        await self._http.aclose()

    async def _send(self, task_id: str, waiting: deque[PushNotificationEvent]) -> None:
        """Send the notifications in `waiting`, the queue of a task, in order until it is empty; then remove the
        queue.

        The queue is also removed, with its rest, if sending raises an exception.
        """
        try:
            while waiting:
                await self._sender.send_notification(task_id, waiting.popleft())
        finally:
            del self._waiting[task_id], self._sending[task_id]


def open_push_http(*, public_only: bool = True) -> httpx.AsyncClient:
    """Return an HTTP client for push notifications, whose receivers are not trusted because clients name their
    addresses.

    It follows no redirects, ignores proxies of the environment, and reads no response body, so that a receiver can
    neither redirect requests nor exhaust memory. A request may take 10 seconds.

    Args:
        public_only: Refuse addresses that are not on the public network.
    """
    transport = PublicTransport() if public_only else httpx.AsyncHTTPTransport()
    return httpx.AsyncClient(
        transport=_StatusOnly(transport), follow_redirects=False, timeout=_TIMEOUT_S, trust_env=False
    )


class _StatusOnly(httpx.AsyncBaseTransport):
    """HTTP transport that returns only the status of a response, without its headers and body."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return a response that has only the status."""
        response = await self._transport.handle_async_request(request)
        await response.aclose()
        return httpx.Response(response.status_code, extensions=response.extensions)

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._transport.aclose()


class A2AOptions(TypedDict, total=False):
    """The keyword arguments of `A2AServer`, for type checkers."""

    stores: Stores | None
    context: Mapping[str, Any]
    show_outputs: bool
    heartbeat_s: float
    session_ids: SessionIdOf
    context_builder: ServerCallContextBuilder | None
    credential_headers: Mapping[str, str]
    push_url_check: UrlCheck
    slots: SlotFactory
    bounds: RequestBounds


class A2AServer:
    """The A2A endpoints of one agent: agent card, JSON-RPC and HTTP+JSON, in the protocol versions 1.0 and 0.3.

    Args:
        graph: The agent, compiled with a checkpointer.
        card: The agent card, e.g. from `agent_card`. Its `push_notifications` enables push notifications.
        stores: Storage for tasks and push configurations; None for in-memory storage.
        context: Fields of `AgentContext` for every run. If neither they nor the agent set `max_steps`, it is 10.
        show_outputs: Whether the outputs of tools are sent to subscribers.
        heartbeat_s: Seconds without an update after which a running task sends a heartbeat.
        session_ids: Returns the session id for a user name and a conversation id.
        context_builder: Builds the SDK's call context, including the user; None for Starlette's authenticated user.
        credential_headers: Credential name → request header that carries the credential for its run.
        push_url_check: Returns whether an address of a client may be notified; by default only addresses on the public
            network.
        slots: Limits how many tasks of one user run at the same time.
        bounds: Size limits of one request.

    Raises:
        ConfigError: The graph has no checkpointer, or a credential header is invalid.
    """

    def __init__(
        self,
        graph: CompiledAgentGraph,
        card: types.AgentCard,
        *,
        stores: Stores | None = None,
        context: Mapping[str, Any] = MappingProxyType({}),
        show_outputs: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
        session_ids: SessionIdOf = session_id_of,
        context_builder: ServerCallContextBuilder | None = None,
        credential_headers: Mapping[str, str] = MappingProxyType({}),
        push_url_check: UrlCheck = is_public_url,
        slots: SlotFactory = unbounded,
        bounds: RequestBounds = RequestBounds(),  # noqa: B008 - it is frozen
    ) -> None:
        if not graph.checkpointer:
            raise ConfigError("An A2A server needs a graph that keeps its sessions: compile it with a checkpointer.")
        # At construction, so that a wrong header is found before the first request.
        check_headers(credential_headers)
        context_builder = context_builder or DefaultServerCallContextBuilder()
        if credential_headers:
            context_builder = CredentialContext(context_builder, credential_headers)
        self.card = card
        stores = stores or Stores(LiveTaskStore(InMemoryTaskStore()), InMemoryPushNotificationConfigStore())
        other_processes = OtherProcesses(stores.tasks, graph.store)
        self._executor = GraphExecutor(
            graph,
            context=context,
            show_outputs=show_outputs,
            heartbeat_s=heartbeat_s,
            session_ids=session_ids,
            cancel_requests=other_processes.cancel_requests,
            slots=slots,
        )
        """Runs the tasks."""
        self._push = PushNotifier(stores.push, push_url_check) if card.capabilities.push_notifications else None
        self._handler = _Handler(
            self._executor,
            ConversationStore(stores.tasks),
            card,
            push_config_store=stores.push if self._push else None,
            push_sender=self._push,
            push_url_validator=push_url_check,
            validate_input_modes=True,
            request_context_builder=CheckedRequests(
                notifies=self._push is not None,
                tasks=stores.tasks,
                task_lease=self._executor.is_working_on,
                other_processes=other_processes,
                check_new=self._executor.check_new,
            ),
            interrupted_task_timeout=_PARKED_S,
        )
        self._handler.other_processes = other_processes
        rpc = [
            route
            # Both paths are served: some clients follow no redirect, or drop the body on one.
            for path in (RPC_PATH, f"{RPC_PATH}/")
            for route in create_jsonrpc_routes(self._handler, path, context_builder, enable_v0_3_compat=True)
        ]
        rest = create_rest_routes(self._handler, context_builder, enable_v0_3_compat=True, path_prefix=REST_PATH)
        for route in rest:
            if isinstance(route, Route) and route.path.endswith((":stream", ":subscribe")):
                route.app = error_responses.RefusedStreams(route.app)
        self.routes: list[BaseRoute] = [
            *create_agent_card_routes(card, cache_control=f"public, max-age={CARD_AGE_S}"),
            *(_bounded(route, bounds, error_responses.refused_over_jsonrpc) for route in rpc),
            # The SDK's mount for tenants is left out: it would match every path of the host application.
            *(_bounded(route, bounds, error_responses.refused_over_rest) for route in rest if isinstance(route, Route)),
        ]
        """The routes, for a Starlette or FastAPI application."""

        self._tasks = stores.tasks
        self.draining = False
        """Whether `drain` was called."""
        self._closing: asyncio.Future[None] | None = None

    def drain(self) -> None:
        """Start no more tasks, and stop each running task at its next superstep boundary. Thread-safe.

        A stopped task ends as `failed` with a message; a later message in its conversation continues the session.
        """
        self.draining = True
        self._executor.drain()

    async def drained(self, within_s: float) -> None:
        """Wait until no task runs and all final states are stored and sent, but at most `within_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._executor.drained()
                if isinstance(self._tasks, LiveTaskStore):
                    await self._tasks.settled()
                if self._push is not None:
                    await self._push.drained()

    def cancel(self) -> None:
        """Begin to stop every task, as `aclose` does, without waiting; a further call does nothing.

        `aclose` waits until they have stopped. Must be called on the server's event loop.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self.aclose())

    async def aclose(self) -> None:
        """Stop every running task, without storing a final state, and close the streams and the connections for
        notifications.

        Waits until everything has stopped. The database stays open.
        """
        # First, because its streams wait for the executor's events.
        await self._handler.aclose()
        await self._executor.aclose()
        if isinstance(self._tasks, LiveTaskStore):
            # Cancelled runs store no final state, for which `settled` would wait.
            self._tasks.abandon()
        if self._push is not None:
            await self._push.aclose()


def _bounded(route: BaseRoute, bounds: RequestBounds, refusal: error_responses.Refusal) -> BaseRoute:
    """Make a route of HTTP refuse requests over the size limits, in place, and return it; any other route stays as it
    is.

    Args:
        route: A route of the SDK.
        bounds: The size limits.
        refusal: Builds the response to a refused request.
    """
    if isinstance(route, Route):
        route.app = BoundedRequests(route.app, bounds, refusal)
    return route


class _Handler(DefaultRequestHandler):
    """The SDK's request handler, extended for tasks that other processes run, and for one message per task at a time.

    The SDK assumes that a task runs in this process or nowhere. It also queues a message to a running task, answers the
    sender with the events of the previous message, and drops the queued message when the task ends.
    """

    agent_executor: GraphExecutor
    other_processes: OtherProcesses

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tasks_in_use: set[tuple[str, str]] = set()

    async def on_message_send(
        self, params: types.SendMessageRequest, context: ServerCallContext
    ) -> types.Message | types.Task:
        """Run a message, and return the task once it has ended or asks a question, or at once with
        `return_immediately`.

        A message that steers its conversation, or that repeats one of a task that has ended, starts no run: it is
        answered with a confirmation, or with that task. Raises an `A2AError` for an invalid message, another message to
        a task that has ended, and a message to a task that processes another one.
        """
        check_required_fields(params)
        if (reply := await self._reply(params.message, context)) is not None:
            return reply
        with self._one_message(params, context):
            answer: types.Message | types.Task = await _SEND(self, params, context)
            return answer

    async def on_message_send_stream(
        self, params: types.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Run a message, and yield the updates of its task.

        A message that starts no run has one reply in place of updates. Raises an `A2AError` for an invalid message, a
        message to a task that has ended or processes another one, and a subscriber that does not read.
        """
        check_required_fields(params)
        if (reply := await self._reply(params.message, context)) is not None:
            yield reply
            return
        with self._one_message(params, context):
            async with aclosing(bounded_stream(_SEND_STREAM(self, params, context))) as events:
                async for event in events:
                    yield event

    async def _reply(self, message: types.Message, context: ServerCallContext) -> types.Message | types.Task | None:
        """Return the reply to a message that starts no run; None for any other message.

        A message that steers its conversation is answered with a confirmation, and a repeated message of a task that
        has ended with that task. Raises `UnsupportedOperationError` for any other message to a task that has ended.
        """
        task = await self.task_store.get(message.task_id, context) if message.task_id else None
        if STEERING in message.extensions:
            sent = deepcopy(message)
            sent.context_id = task.context_id if isinstance(task, types.Task) else message.context_id
            return await self.agent_executor.steer(sent, context.user.user_name)
        if not isinstance(task, types.Task) or task.status.state not in ENDED_STATES:
            return None
        # The first message named no task.
        received = [list(each.parts) for each in task.history[1:] if each.message_id == message.message_id]
        if list(message.parts) in received:
            return task
        if message.context_id in ("", task.context_id):
            # The SDK would refuse it only after it has started two queues, which it then does not close.
            state = types.TaskState.Name(task.status.state)
            raise UnsupportedOperationError(message=f"Task {task.id} is in terminal state: {state}")
        return None

    @contextmanager
    def _one_message(self, params: types.SendMessageRequest, context: ServerCallContext) -> Iterator[None]:
        """Within the context, refuse further messages of the same user to the same task by `UnsupportedOperationError`.

        Does nothing for a message without a task id. Raises that error on entry if another message of the task is being
        processed.
        """
        key = context.user.user_name, params.message.task_id
        if key in self._tasks_in_use:
            raise UnsupportedOperationError(message=STILL_RUNNING)
        added = {key} if params.message.task_id else set[tuple[str, str]]()
        self._tasks_in_use |= added
        try:
            yield
        finally:
            self._tasks_in_use -= added

    async def on_list_tasks(
        self, params: types.ListTasksRequest, context: ServerCallContext
    ) -> types.ListTasksResponse:
        """Return a page of the caller's tasks. Raises `InvalidParamsError` for an invalid filter or page token."""
        check_listing(params)
        page: types.ListTasksResponse = await super().on_list_tasks(params, context)
        return page

    async def on_cancel_task(self, params: types.CancelTaskRequest, context: ServerCallContext) -> types.Task | None:
        """Cancel a task, in whichever process it runs, and return it once it has stopped; None if there is no such
        task.

        A question for which the task waits is dropped. Raises an `A2AError` if the task cannot be cancelled, because it
        has ended, its process cannot be reached, or the run does not stop in time.
        """
        # The SDK would write the final state itself, and the other process would overwrite it.
        ended = await self.other_processes.cancel(params.id, context)
        if ended is not None and ended.status.state in ENDED_STATES:
            return ended
        task: types.Task | None = await super().on_cancel_task(params, context)
        if task is not None:
            await self.agent_executor.forget(context.user.user_name, task)
        return task

    async def on_subscribe_to_task(
        self, params: types.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Yield the updates of a task that this process runs.

        If another process runs it, yield only its stored state now and after its end. Raises the SDK's errors for an
        unknown task or one that has ended.
        """
        watched = False
        async for task in self.other_processes.watch(params.id, context):
            watched = True
            yield task
        if not watched:
            async with aclosing(bounded_stream(super().on_subscribe_to_task(params, context))) as events:
                async for event in events:
                    yield event
