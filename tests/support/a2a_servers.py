"""Real A2A servers on free loopback ports: ours, and plain ones of the SDK."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import uvicorn
import uvicorn.server
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette

from graph_agent.a2a.server import a2a_app, agent_card
from graph_agent.compiled import CompiledAgentGraph

App = Callable[..., Awaitable[None]]

# uvicorn checks every 100 ms whether to stop, and whether its connections are closed: too long for hundreds of servers.
uvicorn.server.asyncio = SimpleNamespace(  # type: ignore[assignment,attr-defined]  # uvicorn has no setting for it
    **{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 20)}
)


@contextmanager
def serving(make: Callable[[str], Any]) -> Iterator[str]:
    """Serve an application from a thread with a loop of its own; yield its address.

    Args:
        make: Makes the application of its address.
    """
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(make(url), log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
        server = uvicorn.Server(config)
        started = threading.Event()
        plain_startup = server.startup

        async def startup(sockets: list[socket.socket] | None = None) -> None:
            await plain_startup(sockets)
            started.set()

        server.startup = startup  # type: ignore[method-assign]  # uvicorn has no event for its start
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
        thread.start()
        assert started.wait(120)
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join(120)


def serving_ours(graph: CompiledAgentGraph, **options: Any) -> Any:
    """Serve one of our agents."""
    return serving(lambda url: a2a_app(graph, agent_card(graph, url), **options))


@asynccontextmanager
async def serving_here(graph: CompiledAgentGraph, **options: Any) -> AsyncIterator[str]:
    """Serve one of our agents on the caller's own loop, for savers that belong to it."""
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = a2a_app(graph, agent_card(graph, url), **options)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield url
        finally:
            server.should_exit = True
            await serving


Work = Callable[[str, TaskUpdater, RequestContext], Awaitable[None]]


class PlainAgent(AgentExecutor):
    """A plain agent of the SDK, driven by a function.

    Args:
        work: Takes the text of the message, the updater of the task, and the request.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.makes_tasks = True
        self.inputs: list[str] = []
        self.contexts: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = threading.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        assert context.message is not None
        self.inputs.append(context.get_user_input())
        self.contexts.append(context.context_id)
        self.headers.append(context.call_context.state["headers"])
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None and self.makes_tasks:
            await event_queue.enqueue_event(
                Task(
                    id=context.task_id,
                    context_id=context.context_id,
                    status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
                    history=[context.message],
                )
            )
        await self._work(self.inputs[-1], updater, context)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        self.cancelled.set()
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def plain_card(url: str, *, streaming: bool = True, at: str | None = None) -> AgentCard:
    """The card of a plain agent."""
    return AgentCard(
        name="plain",
        description="Answers plainly.",
        version="1",
        supported_interfaces=[
            AgentInterface(url=at or f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="facts", name="facts", description="Knows facts.", tags=["facts"])],
    )


def plain_app(agent: PlainAgent, card: AgentCard) -> Starlette:
    """The application of a plain agent."""
    handler = DefaultRequestHandler(agent, InMemoryTaskStore(), card)
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])


def serving_plain(agent: PlainAgent, **card: Any) -> Any:
    """Serve a plain agent."""
    return serving(lambda url: plain_app(agent, plain_card(url, **card)))


async def answer(updater: TaskUpdater, *parts: Part) -> None:
    """Answer with one artifact, and complete."""
    await updater.add_artifact(list(parts), name="answer")
    await updater.complete()
