"""Races between two steps of an A2A task."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from a2a.auth.user import UnauthenticatedUser
from a2a.server.agent_execution import RequestContext
from a2a.server.cluster import ConcurrentTaskModificationError
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.events.event_queue_v2 import EventQueueSource
from a2a.types import CancelTaskRequest, SendMessageRequest, Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import InternalError
from langchain_core.tools import tool

from graph_agent import Session
from graph_agent.interfaces.server.a2a import executor as executor_module
from graph_agent.interfaces.server.a2a.executor import GraphExecutor
from graph_agent.interfaces.server.a2a.store import Stores, open_stores
from graph_agent.interfaces.server.settings import A2A_DEFAULTS
from tests.support.a2a_agents import HeldTool, weather_agent
from tests.support.a2a_client import a2a_client, message_request, state_name
from tests.support.a2a_servers import serving_here
from tests.support.agents import asks

ANONYMOUS = ServerCallContext(user=UnauthenticatedUser())


class Cancelling(EventQueueSource):
    """The queue of a task that is cancelled between its `working` update and the start of its run."""

    def __init__(self, executor: GraphExecutor, request: RequestContext) -> None:
        super().__init__()
        self._executor = executor
        self._request = request
        self.cancelled: asyncio.Task[None] | None = None

    async def enqueue_event(self, event: Event) -> None:
        await super().enqueue_event(event)
        if self.cancelled is None and isinstance(event, TaskStatusUpdateEvent):
            self.cancelled = asyncio.create_task(self._executor.cancel(self._request, self))
            await asyncio.sleep(0)


async def states(queue: EventQueueSource) -> list[str]:
    """The states that a task has reported, to its end."""
    names: list[str] = []
    while True:
        event: Event = await queue.dequeue_event()
        queue.task_done()
        if isinstance(event, TaskStatusUpdateEvent):
            names.append(TaskState.Name(event.status.state))
            if event.status.state != TaskState.TASK_STATE_WORKING:
                return names


def request_of(request: SendMessageRequest) -> RequestContext:
    return RequestContext(ANONYMOUS, request, task_id="t1", context_id=request.message.context_id)


async def test_cancelling_a_task_leaves_another_run_of_its_session() -> None:
    held = HeldTool()
    graph = weather_agent([asks(("1", "hold", {})), "Done."], tools=[held.tool])
    executor, request = GraphExecutor(graph), request_of(message_request("me too", context_id="s1"))
    queue = Cancelling(executor, request)
    other = asyncio.create_task(Session(graph, "s1").run("go", context=A2A_DEFAULTS))
    await held.begun.wait()
    await executor.execute(request, queue)
    assert queue.cancelled is not None
    await queue.cancelled
    held.let_go.set()
    ended = await other
    emitted = await states(queue)
    await queue.close(immediate=True)

    assert (ended.status, ended.answer, emitted) == (
        "COMPLETED",
        "Done.",
        ["TASK_STATE_WORKING", "TASK_STATE_CANCELED"],
    )


async def test_a_task_finished_by_another_process_is_not_resumed(tmp_path: Path) -> None:
    async def has_lease(task: Task, context: ServerCallContext) -> bool:
        return False

    async def put(stores: Stores, state: TaskState) -> None:
        await stores.tasks.save(Task(id="t1", context_id="c1", status=TaskStatus(state=state)), ANONYMOUS)

    url = f"sqlite:///{tmp_path}/tasks.db"
    async with open_stores(url, task_lease=has_lease) as one, open_stores(url, task_lease=has_lease) as other:
        await put(one, TaskState.TASK_STATE_SUBMITTED)
        await put(one, TaskState.TASK_STATE_INPUT_REQUIRED)
        await put(other, TaskState.TASK_STATE_CANCELED)
        for state in (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_WORKING):
            with pytest.raises(ConcurrentTaskModificationError):
                await put(one, state)
        kept = await one.tasks.get("t1", ANONYMOUS)

    assert kept is not None
    assert state_name(kept) == "TASK_STATE_CANCELED"


async def test_a_run_that_does_not_stop_fails_its_cancel_request_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor_module, "CANCEL_S", 0.05)
    begun, released = asyncio.Event(), asyncio.Event()

    @tool
    async def stuck() -> str:
        """Work on, also after a cancellation."""
        begun.set()
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return "done"

    graph = weather_agent([asks(("1", "stuck", {})), "Done."], tools=[stuck])
    async with asyncio.timeout(60), serving_here(graph) as url, a2a_client(url) as client:
        events = client.send_message(message_request("go", context_id="s1"))
        task_id = (await anext(events)).task.id
        await begun.wait()
        try:
            with pytest.raises(InternalError) as refused:
                await client.cancel_task(CancelTaskRequest(id=task_id))
        finally:
            released.set()
        left = [event async for event in events]

    assert (str(refused.value), TaskState.Name(left[-1].status_update.status.state)) == (
        "The run of this task did not stop within 0.05 s of the request to cancel it, and the task ends as failed. "
        "Continue the conversation with another message.",
        "TASK_STATE_FAILED",
    )
