"""An A2A server over any graph of ours: routes to mount beside others, or an application of its own."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder, ServerCallContextBuilder
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types import AgentCard, CancelTaskRequest, Message, SendMessageRequest, SubscribeToTaskRequest, Task
from a2a.utils.errors import UnsupportedOperationError
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from graph_agent.a2a.server_card import REST_PATH, RPC_PATH
from graph_agent.a2a.server_credentials import CredentialContext
from graph_agent.a2a.server_elsewhere import Elsewhere
from graph_agent.a2a.server_executor import A2A_DEFAULTS, HEARTBEAT_S, GraphExecutor, Held, unbounded
from graph_agent.a2a.server_history import ConversationStore
from graph_agent.a2a.server_push import Pusher
from graph_agent.a2a.server_requests import (
    AT_WORK,
    BoundedRequests,
    CheckedRequests,
    RequestBounds,
    check_required_fields,
    refused_over_jsonrpc,
    refused_over_rest,
)
from graph_agent.a2a.server_sessions import SessionIds, session_id_of
from graph_agent.a2a.server_store import ENDED, LiveTaskStore, Stores
from graph_agent.a2a.server_text import Refusal, refused_text_over_jsonrpc, refused_text_over_rest
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.credential_headers import check_headers
from graph_agent.errors import ConfigError
from graph_agent.public_network import is_public_url

if TYPE_CHECKING:
    from graph_agent.server.standalone import a2a_app as a2a_app

CARD_AGE_S = 60
"""Seconds a client may keep the card before it asks again."""

_PARKED_S = 1.0
"""Seconds that a task is held in memory while it waits for a person: its answer may come through another process."""

UrlCheck = Callable[[str], Awaitable[bool]]


class A2AServer:
    """The A2A side of one agent: its card, JSON-RPC and HTTP+JSON, in the versions 1.0 and 0.3.

    Args:
        graph: The agent, compiled with a checkpointer.
        card: Its card, e.g. from `agent_card`; its `push_notifications` turns them on.
        stores: Where tasks are kept; None for memory.
        context: Overrides for every run.
        show_outputs: Whether what tools gave is told to those who watch.
        heartbeat_s: Seconds of silence after which a running task says that it is alive.
        session_ids: Makes a session's id of a user's name and a conversation's id.
        context_builder: Tells the SDK who is calling; None to take Starlette's authenticated user.
        credential_headers: Credential name → the header in which a request may bring it, for its own run.
        push_url_check: Whether a client's address may be notified; by default only those on the public network.
        held: Bounds how many tasks of a user are at work at the same time.
        bounds: How much one request may hold.

    Raises:
        ConfigError: When the graph keeps nothing, or a credential's header cannot be one.
    """

    def __init__(
        self,
        graph: CompiledAgentGraph,
        card: AgentCard,
        *,
        stores: Stores | None = None,
        context: Mapping[str, Any] = A2A_DEFAULTS,
        show_outputs: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
        session_ids: SessionIds = session_id_of,
        context_builder: ServerCallContextBuilder | None = None,
        credential_headers: Mapping[str, str] = MappingProxyType({}),
        push_url_check: UrlCheck = is_public_url,
        held: Held = unbounded,
        bounds: RequestBounds = RequestBounds(),  # noqa: B008 - it is frozen
    ) -> None:
        if not graph.checkpointer:
            raise ConfigError("An A2A server needs a graph that keeps its sessions: compile it with a checkpointer.")
        check_headers(credential_headers)
        context_builder = context_builder or DefaultServerCallContextBuilder()
        if credential_headers:
            context_builder = CredentialContext(context_builder, credential_headers)
        self.card = card
        stores = stores or Stores(LiveTaskStore(InMemoryTaskStore()), InMemoryPushNotificationConfigStore())
        elsewhere = Elsewhere(stores.tasks, graph.store)
        self._executor = GraphExecutor(
            graph,
            context=context,
            show_outputs=show_outputs,
            heartbeat_s=heartbeat_s,
            session_ids=session_ids,
            cancels=elsewhere.cancels,
            held=held,
        )
        self._push = Pusher(stores.push, push_url_check) if card.capabilities.push_notifications else None
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
                at_work=self._executor.works_on,
                elsewhere=elsewhere,
            ),
            interrupted_task_timeout=_PARKED_S,
        )
        self._handler.elsewhere = elsewhere
        rpc = [
            route
            # A client that follows no redirect, or loses its body by one, is answered at either.
            for path in (RPC_PATH, f"{RPC_PATH}/")
            for route in create_jsonrpc_routes(self._handler, path, context_builder, enable_v0_3_compat=True)
        ]
        rest = create_rest_routes(self._handler, context_builder, enable_v0_3_compat=True, path_prefix=REST_PATH)
        self.routes: list[BaseRoute] = [
            *create_agent_card_routes(card, cache_control=f"public, max-age={CARD_AGE_S}"),
            *(_bounded(route, bounds, refused_over_jsonrpc, refused_text_over_jsonrpc) for route in rpc),
            # The SDK's mount for tenants would take every path of an application these routes are added to.
            *(
                _bounded(route, bounds, refused_over_rest, refused_text_over_rest)
                for route in rest
                if isinstance(route, Route)
            ),
        ]

        self._tasks = stores.tasks
        self._draining = False
        self._closing: asyncio.Future[None] | None = None

    @property
    def draining(self) -> bool:
        """Whether it was told to stop."""
        return self._draining

    def drain(self) -> None:
        """Let each task at work stop at its next boundary, and begin no other; any thread may call it.

        Such a task has failed, and says why; a later message in its conversation goes on.
        """
        self._draining = True
        self._executor.drain()

    async def drained(self, within_s: float) -> None:
        """Wait until no task is at work, and each one's end is written down and sent; so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._executor.drained()
                if isinstance(self._tasks, LiveTaskStore):
                    await self._tasks.settled()
                if self._push is not None:
                    await self._push.sent()

    def cancel(self) -> None:
        """Stop every task now, from the server's loop."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self.aclose())

    async def aclose(self) -> None:
        """Stop every task at work, and close what was opened."""
        await self._handler.aclose()
        await self._executor.aclose()
        if self._push is not None:
            await self._push.aclose()


def __getattr__(name: str) -> Any:
    # `a2a_app` is defined above this layer: the servers' admission layer is a part of it.
    if name != "a2a_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("graph_agent.server.standalone").a2a_app


def _bounded(
    route: BaseRoute, bounds: RequestBounds, refusal: Callable[[str], Response], text_refusal: Refusal
) -> BaseRoute:
    if isinstance(route, Route):
        route.app = BoundedRequests(route.app, bounds, refusal, text_refusal)
    return route


# The SDK's own check of required fields, around these methods, walks every value of metadata and data as well.
_SEND = inspect.unwrap(DefaultRequestHandler.on_message_send)
_SEND_STREAM = inspect.unwrap(DefaultRequestHandler.on_message_send_stream)


class _Handler(DefaultRequestHandler):
    """The SDK's handler, for tasks that other processes may run, and that take one message at a time.

    By itself the SDK takes a task that it does not run for one that no process runs; and it queues a message to a task
    at work, shows its sender what becomes of the message before, and drops it when the task ends.
    """

    agent_executor: GraphExecutor
    elsewhere: Elsewhere

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answered: set[tuple[str, str]] = set()

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Message | Task:
        check_required_fields(params)
        with self._one_message(params, context):
            answer: Message | Task = await _SEND(self, params, context)
            return answer

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        check_required_fields(params)
        with self._one_message(params, context):
            async with aclosing(_SEND_STREAM(self, params, context)) as events:
                async for event in events:
                    yield event

    @contextmanager
    def _one_message(self, params: SendMessageRequest, context: ServerCallContext) -> Iterator[None]:
        """While within, refuse another message to the same task: the task may not be at work yet.

        Raises:
            UnsupportedOperationError: When there is such a message already.
        """
        key = context.user.user_name, params.message.task_id
        if key in self._answered:
            raise UnsupportedOperationError(message=AT_WORK)
        named = {key} if params.message.task_id else set[tuple[str, str]]()
        self._answered |= named
        try:
            yield
        finally:
            self._answered -= named

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        ended = await self.elsewhere.cancel(params.id, context)
        if ended is not None and ended.status.state in ENDED:
            return ended
        task: Task | None = await super().on_cancel_task(params, context)
        if task is not None:
            await self.agent_executor.forget(context.user.user_name, task)
        return task

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        told = False
        async for task in self.elsewhere.watch(params.id, context):
            told = True
            yield task
        if not told:
            async for event in super().on_subscribe_to_task(params, context):
                yield event
