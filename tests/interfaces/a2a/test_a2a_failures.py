"""Responses to A2A clients when the database fails or cannot store a value: no internals are exposed."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import Task, TaskState, TaskStatus
from a2a.utils.errors import InternalError

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.server.a2a import store as server_store
from graph_agent.interfaces.server.a2a.store import LiveTaskStore, open_stores
from graph_agent.persistence import open_saver
from tests.support.a2a_servers import serving_here
from tests.support.postgres_server import on_postgres

ANONYMOUS = ServerCallContext()
_NUL = "a\x00b"
_CALLS = {
    "GetTask": {"id": "t1"},
    "CancelTask": {"id": "t1"},
    "SubscribeToTask": {"id": "t1"},
    "ListTasks": {},
    "SendMessage": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}},
}
_LOOKUPS = {
    "GetTask": {"id": _NUL},
    "CancelTask": {"id": _NUL},
    "SubscribeToTask": {"id": _NUL},
    "ListTasks": {"contextId": _NUL},
    "SendMessage": {"message": {"messageId": "m", "taskId": _NUL, "role": "ROLE_USER", "parts": [{"text": "hi"}]}},
}


async def test_database_errors_are_not_quoted_to_the_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tasks.db"

    def lose() -> None:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("DROP TABLE tasks")

    answers = await _errors(f"sqlite:///{file}", _CALLS, lose)

    assert answers == dict.fromkeys(_CALLS, (-32603, "The server could not access its tasks; see the server log."))
    assert "Reading an A2A task failed: OperationalError:" in caplog.text


@pytest.mark.parametrize(("failures", "kept"), [(2, "TASK_STATE_COMPLETED"), (4, "TASK_STATE_WORKING")])
async def test_the_final_task_state_is_retried_while_the_database_fails(
    failures: int, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(InMemoryTaskStore):
        async def save(self, task: Task, context: ServerCallContext) -> None:
            if task.status.state == TaskState.TASK_STATE_COMPLETED and left:
                raise left.pop()
            await super().save(task, context)

    monkeypatch.setattr(server_store, "_RETRY_PAUSES_S", (0, 0, 0))
    left = [InternalError() for _ in range(failures)]
    inner = Failing()
    store = LiveTaskStore(inner)
    with suppress(InternalError):
        for state in (TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED):
            await store.save(Task(id="t1", context_id="c1", status=TaskStatus(state=state)), ANONYMOUS)
    async with asyncio.timeout(30):
        # A task that could not be written is not waited for.
        await store.settled()
    found = await inner.get("t1", ANONYMOUS)

    assert found is not None
    assert TaskState.Name(found.status.state) == kept


@on_postgres
async def test_ids_that_postgresql_cannot_store_are_not_found(postgres_url: str) -> None:
    answers = await _errors(postgres_url, _LOOKUPS)

    assert {method: code for method, (code, _) in answers.items()} == {
        **dict.fromkeys(_LOOKUPS, -32001),
        "ListTasks": -32602,
    }


async def _errors(url: str, calls: dict[str, Any], begin: Any = lambda: None) -> dict[str, tuple[int, str]]:
    """The code and the message of each call's error."""
    async with open_saver("memory:") as saver, open_stores(url) as stores:
        graph = create_graph_agent(ScriptedChatModel(["Hello."]), checkpointer=saver)
        begin()
        async with (
            serving_here(graph, stores=stores) as address,
            httpx.AsyncClient(trust_env=False, verify=False, headers={"A2A-Version": "1.0"}, timeout=30) as http,
        ):
            errors = {}
            for method, params in calls.items():
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                error = (await http.post(f"{address}/a2a", json=body)).json()["error"]
                errors[method] = (error["code"], error["message"])
            return errors
