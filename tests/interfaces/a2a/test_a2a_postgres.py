"""A2A tasks and push notification configs in a real PostgreSQL server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from a2a.auth.user import UnauthenticatedUser
from a2a.server.context import ServerCallContext
from a2a.types import (
    GetTaskRequest,
    ListTasksRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.server.a2a import store as server_store
from graph_agent.interfaces.server.a2a.conversations import task_lease
from graph_agent.interfaces.server.a2a.store import open_stores
from graph_agent.persistence import open_saver
from tests.support.a2a_agents import book
from tests.support.a2a_client import a2a_client, artifact_texts, message_request, send, state_name
from tests.support.a2a_process import a2a_process
from tests.support.a2a_servers import serving_here
from tests.support.agents import asks
from tests.support.gates import Gate, gated_tool
from tests.support.postgres_server import on_postgres

pytestmark = on_postgres

LONG = "a conversation's name, longer than any UUID: " + "x" * 200


async def test_tasks_and_conversations_survive_a_restart(postgres_url: str) -> None:
    tasks: list[Task] = []
    listed: list[Task] = []
    for script, text in ((["Hello Ada.", asks(("1", "book", {"room": "1"}))], "one"), (["Booked.", "Ada."], "two")):
        async with open_saver(postgres_url) as saver, open_stores(postgres_url) as stores:
            graph = create_graph_agent(ScriptedChatModel(script), tools=[book], checkpointer=saver)
            async with serving_here(graph, stores=stores) as url, a2a_client(url, streaming=False) as client:
                if text == "one":
                    tasks.append(await send(client, message_request("I am Ada \U0001f600.", context_id=LONG)))
                    tasks.append(await send(client, message_request("Book room 1", context_id=LONG)))
                else:
                    tasks.append(await client.get_task(GetTaskRequest(id=tasks[0].id)))
                    tasks.append(await send(client, message_request("yes", tasks[1])))
                    page = await client.list_tasks(ListTasksRequest(context_id=LONG, page_size=1))
                    more = ListTasksRequest(context_id=LONG, page_token=page.next_page_token)
                    listed = [*page.tasks, *(await client.list_tasks(more)).tasks]

    assert [(state_name(task), artifact_texts(task)) for task in tasks] == [
        ("TASK_STATE_COMPLETED", ["Hello Ada."]),
        ("TASK_STATE_INPUT_REQUIRED", []),
        ("TASK_STATE_COMPLETED", ["Hello Ada."]),
        ("TASK_STATE_COMPLETED", ["Booked."]),
    ]
    assert [task.id for task in listed] == [tasks[1].id, tasks[0].id]


async def test_push_notification_configs_survive_a_restart(postgres_url: str) -> None:
    context = ServerCallContext(user=UnauthenticatedUser())
    given = TaskPushNotificationConfig(task_id="t1", id="mine", url="https://example.com/hook", token="t0ken")
    async with open_stores(postgres_url) as stores:
        await stores.push.set_info("t1", given, context)
    async with open_stores(postgres_url) as stores:
        found = await stores.push.get_info("t1", context)
        await stores.push.delete_info("t1", context, "mine")
        left = await stores.push.get_info("t1", context)

    assert ([(each.url, each.token) for each in found], left) == ([("https://example.com/hook", "t0ken")], [])


async def test_several_processes_can_open_the_stores_at_once(postgres_url: str) -> None:
    async def opened() -> bool:
        async with open_stores(postgres_url) as stores:
            return await stores.tasks.get("none", ServerCallContext()) is None

    assert await asyncio.gather(*(opened() for _ in range(5))) == [True] * 5


async def test_a_task_without_a_running_session_is_failed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_store, "LOST_AFTER_S", 0.0)
    anonymous, gate = ServerCallContext(), Gate()
    states: list[str] = []
    async with open_saver(postgres_url) as saver, open_saver(postgres_url) as other:
        script = [asks(("1", "work", {})), "No more actions.", "Done."]
        graph = create_graph_agent(ScriptedChatModel(script), tools=[gated_tool(gate)], checkpointer=saver)
        elsewhere = create_graph_agent(ScriptedChatModel([]), checkpointer=other)
        working = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        working.timestamp.GetCurrentTime()
        async with open_stores(postgres_url, task_lease=task_lease(graph)) as stores:
            await stores.tasks.save(Task(id="t1", context_id="c1", status=working), anonymous)
        run = asyncio.create_task(graph.ainvoke({"messages": "go"}, {"configurable": {"thread_id": "c1"}}))
        await gate.reached()
        async with open_stores(postgres_url, task_lease=task_lease(elsewhere)) as stores:
            for _ in range(2):
                found = await stores.tasks.get("t1", anonymous)
                assert found is not None
                states.append(state_name(found))
                gate.open()
                await run
            listed = await stores.tasks.list(ListTasksRequest(), anonymous)

    assert (states, [state_name(task) for task in listed.tasks]) == (
        ["TASK_STATE_WORKING", "TASK_STATE_FAILED"],
        ["TASK_STATE_FAILED"],
    )


async def test_tasks_of_a_killed_process_are_kept_for_the_next(postgres_url: str, tmp_path: Path) -> None:
    go, cut = tmp_path / "go", ""
    with a2a_process(tmp_path, "--db", postgres_url) as (url, process):
        async with a2a_client(url, streaming=False) as client:
            done = await send(client, message_request("first", context_id="talk"))
        async with a2a_client(url) as client:
            stream: Any = client.send_message(message_request(f'!call wait_for {{"file": "{go}"}}', context_id="talk"))
            async with aclosing(stream) as events:
                async for event in events:
                    if "wait_for: started" in str(event):
                        cut = event.status_update.task_id
                        process.kill()
                        break
            process.wait()
    with a2a_process(tmp_path, "--db", postgres_url) as (url, _):
        async with a2a_client(url, streaming=False) as client:
            kept = [await client.get_task(GetTaskRequest(id=task_id)) for task_id in (done.id, cut)]
            after = await send(client, message_request("again", context_id="talk"))

    assert state_name(kept[0]) == "TASK_STATE_COMPLETED"
    # Lost tasks count as working until `LOST_AFTER_S` has passed, which the start of the second process may take.
    assert state_name(kept[1]) in {"TASK_STATE_WORKING", "TASK_STATE_FAILED"}
    assert (
        artifact_texts(kept[0]),
        "You said: first" in artifact_texts(after)[0],
        "again" in artifact_texts(after)[0],
    ) == (
        ["You said: first"],
        True,
        True,
    )
