"""Queued writes of runs in PostgreSQL: committed together, in order, and before anything that relies on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import sql
from psycopg.rows import dict_row

from graph_agent.core.state.fence import DeferredWrites
from graph_agent.core.state.run import AgentHandle, Run, RunIdentity, with_handle
from graph_agent.errors import SessionLostError
from graph_agent.persistence import open_saver, strict_serializer
from graph_agent.storage.checkpoints import postgres_fence
from graph_agent.storage.checkpoints.postgres import SharedPostgresSaver
from graph_agent.storage.checkpoints.postgres_fence import fence_writes, lock_key
from tests.support.committed_steps import Seen, observed_run, types_of
from tests.support.postgres_server import on_postgres

pytestmark = on_postgres

_MESSAGES = (
    "SELECT w.type, w.blob FROM checkpoint_writes w WHERE w.channel = 'messages' AND EXISTS"
    " (SELECT 1 FROM checkpoints c WHERE c.parent_checkpoint_id = w.checkpoint_id) ORDER BY w.checkpoint_id"
)
_TRANSACTIONS = (
    "SELECT count(DISTINCT xmin::text) FROM (SELECT xmin FROM checkpoints UNION ALL SELECT xmin FROM checkpoint_writes"
    " UNION ALL SELECT xmin FROM checkpoint_blobs) AS stored"
)
_CONTINUED = "INSERT INTO checkpoints (thread_id, checkpoint_id, checkpoint, metadata) VALUES (%s, 'z', '{}', '{}')"
_LIKE_LANGGRAPH: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""Options of the connections that LangGraph's saver opens."""


@pytest.fixture(autouse=True)
def endless_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit queued writes only where something requires it, so that their times are deterministic."""
    monkeypatch.setattr(postgres_fence, "MAX_DELAY_S", 3600.0)


@pytest.fixture
async def saver(postgres_url: str) -> AsyncIterator[SharedPostgresSaver]:
    async with open_saver(postgres_url) as opened:
        assert isinstance(opened, SharedPostgresSaver)
        yield opened


def query(url: str, text: Any) -> list[Any]:
    """What another process reads."""
    with psycopg.connect(url) as connection:
        return connection.execute(text).fetchall()


async def observed(saver: SharedPostgresSaver, url: str, called: list[str]) -> tuple[Seen, int]:
    """Run one call per turn; return the committed messages at each point and at the end, and the number of commits."""
    seen = await observed_run(saver, called, lambda: types_of(query(url, _MESSAGES)), called)
    [[commits]] = query(url, _TRANSACTIONS)
    return seen, commits


async def test_a_run_that_only_reads_is_committed_at_its_start_and_end(
    saver: SharedPostgresSaver, postgres_url: str
) -> None:
    seen, commits = await observed(saver, postgres_url, ["read", "read"])

    assert (seen, commits) == (
        [
            *[(point, []) for point in ("request", "read", "request", "read", "request", "request")],
            ("end", ["ai", "tool", "ai", "tool", "ai"]),
        ],
        2,
    )


async def test_the_plan_of_a_writing_call_is_committed_with_all_before_it_when_the_call_starts(
    saver: SharedPostgresSaver, postgres_url: str
) -> None:
    seen, commits = await observed(saver, postgres_url, ["read", "write", "read"])

    assert (seen, commits) == (
        [
            ("request", []),
            ("read", []),
            ("request", []),
            *[(point, ["ai", "tool", "ai"]) for point in ("write", "request", "read", "request", "request")],
            ("end", ["ai", "tool", "ai", "tool", "ai", "tool", "ai"]),
        ],
        3,
    )


class Writer:
    """A run that stores checkpoints in one thread."""

    def __init__(self, saver: AsyncPostgresSaver, thread_id: str, *, defers: bool = True) -> None:
        self._saver = saver
        self.run = Run(
            RunIdentity(thread_id),
            deferred=DeferredWrites(must_commit=False, loop=asyncio.get_running_loop()) if defers else None,
        )
        at = {"thread_id": thread_id, "checkpoint_ns": ""}
        self._config: Any = {"configurable": with_handle(at, AgentHandle(self.run))}

    async def put(self) -> None:
        """Queue a checkpoint, and a write of it."""
        stored = await self._saver.aput(
            self._config, {**empty_checkpoint(), "id": str(uuid6())}, {"source": "loop", "step": 1}, {}
        )
        at = stored["configurable"]
        self._config = {"configurable": {**self._config["configurable"], "checkpoint_id": at["checkpoint_id"]}}
        await self._saver.aput_writes(self._config, [("messages", "hi")], "task")

    async def flush(self) -> None:
        """Commit the queued writes."""
        if self.run.deferred is not None:
            await self.run.deferred.flush()


async def begun(saver: SharedPostgresSaver, *threads: str) -> list[Writer]:
    """Runs that have stored a checkpoint."""
    writers = [Writer(saver, one) for one in threads]
    for writer in writers:
        await writer.put()
        await writer.flush()
    return writers


def stored(url: str) -> dict[str, int]:
    return dict(query(url, "SELECT thread_id, count(*) FROM checkpoints GROUP BY thread_id ORDER BY thread_id"))


async def test_runs_that_write_at_the_same_time_share_a_transaction(
    saver: SharedPostgresSaver, postgres_url: str
) -> None:
    writers = await begun(saver, "a", "b", "c")
    [[before]] = query(postgres_url, _TRANSACTIONS)
    for writer in [*writers, *writers]:
        await writer.put()
    await asyncio.gather(*(writer.flush() for writer in writers))
    [[after]] = query(postgres_url, _TRANSACTIONS)

    assert (stored(postgres_url), after - before) == ({"a": 3, "b": 3, "c": 3}, 1)


async def test_a_lost_session_is_refused_alone(saver: SharedPostgresSaver, postgres_url: str) -> None:
    lost, other = await begun(saver, "a", "b")
    await begun(saver, "a")  # another run, which continues the session
    await asyncio.gather(lost.put(), other.put())
    outcomes = await asyncio.gather(lost.flush(), other.flush(), return_exceptions=True)
    errors = [type(outcome).__name__ for outcome in outcomes]
    with pytest.raises(SessionLostError, match="'a' was continued by another run"):
        await lost.put()

    assert (errors, stored(postgres_url)) == (["SessionLostError", "NoneType"], {"a": 2, "b": 2})


async def test_a_locked_session_delays_no_other(
    saver: SharedPostgresSaver, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_fence, "PAUSE_S", 3600)
    locked, other = await begun(saver, "a", "b")
    await asyncio.gather(locked.put(), other.put())
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [lock_key(("a", ""))])
        waiting = asyncio.create_task(locked.flush())
        async with asyncio.timeout(30):
            await other.flush()
        during = stored(postgres_url)
    await waiting

    assert (during, stored(postgres_url)) == ({"a": 1, "b": 2}, {"a": 2, "b": 2})


@pytest.mark.parametrize("begins", [False, True])
async def test_a_cancelled_transaction_is_repeated(saver: SharedPostgresSaver, postgres_url: str, begins: bool) -> None:
    writers = await begun(saver, "a", "b")
    for writer in writers:
        await writer.put()
    waiting = asyncio.gather(*(writer.flush() for writer in writers))
    while (task := saver._shared._task) is None:
        await asyncio.sleep(0)
    if begins:
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(30):
        await waiting

    assert stored(postgres_url) == {"a": 2, "b": 2}


async def test_a_connection_whose_pipeline_was_left_open_is_replaced(
    saver: SharedPostgresSaver, postgres_url: str
) -> None:
    [writer] = await begun(saver, "a")
    async with saver._pool.connection() as connection:
        connection.pgconn.enter_pipeline_mode()
    for _ in range(saver._pool.max_size):
        await writer.put()
        await writer.flush()

    assert (stored(postgres_url), connection.closed) == ({"a": 1 + saver._pool.max_size}, True)


async def test_a_commit_that_is_cancelled_before_it_begins_is_repeated(
    saver: SharedPostgresSaver, postgres_url: str
) -> None:
    [writer] = await begun(saver, "a")
    await writer.put()
    [queue] = saver._queues.values()
    queue._begin().cancel()
    async with asyncio.timeout(30):
        await writer.flush()

    assert stored(postgres_url) == {"a": 2}


async def test_a_read_returns_what_a_run_has_queued(saver: SharedPostgresSaver) -> None:
    [writer] = await begun(saver, "a")
    await writer.put()
    at: Any = {"configurable": {"thread_id": "a"}}

    assert ([len([one async for one in saver.alist(at)]), await saver.list_threads()]) == [2, ["a"]]


async def test_closing_commits_queued_writes(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver:
        assert isinstance(saver, SharedPostgresSaver)
        await Writer(saver, "a").put()
        before = stored(postgres_url)

    assert (before, stored(postgres_url)) == ({}, {"a": 1})


async def test_a_queued_write_is_committed_soon_without_another(
    saver: SharedPostgresSaver, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_fence, "MAX_DELAY_S", 0.005)
    writer, counts = Writer(saver, "a"), list[int]()
    for number in (1, 2):
        await writer.put()
        async with asyncio.timeout(30):
            while stored(postgres_url) != {"a": number}:
                await asyncio.sleep(0.01)
        counts.append(number)

    assert counts == [1, 2]


async def test_a_checkpoint_stored_twice_keeps_the_last_version(saver: SharedPostgresSaver) -> None:
    [writer] = await begun(saver, "a")
    id_ = str(uuid6())
    for step in (1, 2):
        await saver.aput(writer._config, {**empty_checkpoint(), "id": id_}, {"source": "loop", "step": step}, {})
    found = await saver.aget_tuple({"configurable": {"thread_id": "a"}})

    assert found is not None
    assert (found.checkpoint["id"], found.metadata["step"]) == (id_, 2)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_stricter_default_isolation_hides_no_other_run(postgres_url: str, level: str) -> None:
    """Such a transaction reads the data committed before it began to wait for the lock."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        database = sql.Identifier(connection.info.dbname)
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(database, sql.Literal(level))
        )
    async with (
        open_saver(postgres_url) as saver,
        await psycopg.AsyncConnection[Any].connect(postgres_url, **_LIKE_LANGGRAPH) as own,
    ):
        assert isinstance(saver, SharedPostgresSaver)
        foreign = AsyncPostgresSaver(own, serde=strict_serializer())
        fence_writes(foreign)
        deferring, writing = Writer(saver, "a"), Writer(foreign, "b", defers=False)
        for writer in (deferring, writing):
            await writer.put()
            await writer.flush()
        with psycopg.connect(postgres_url) as other:
            other.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            for thread_id in ("a", "b"):
                other.execute("SELECT pg_advisory_xact_lock(%s)", [lock_key((thread_id, ""))])
            await deferring.put()
            waiting = asyncio.gather(deferring.flush(), writing.put(), return_exceptions=True)
            await until_waiting(postgres_url, 2)
            for thread_id in ("a", "b"):
                other.execute(_CONTINUED, [thread_id])
        outcomes = await waiting

    assert [type(outcome).__name__ for outcome in outcomes] == ["SessionLostError", "SessionLostError"]
    assert stored(postgres_url) == {"a": 2, "b": 2}


async def until_waiting(url: str, number: int) -> None:
    """Wait until some transactions wait for the lock of their thread."""
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with asyncio.timeout(30):
        while query(url, waiting) != [(number,)]:
            await asyncio.sleep(0.01)
