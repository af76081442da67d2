"""Sessions of which a stored row is lost or damaged: no reader shortens them, and nothing is appended."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from graph_agent import Session, SessionMemory
from graph_agent.errors import DamagedSessionError
from graph_agent.persistence import open_saver, open_store, prune
from graph_agent.session.history import EventReader
from graph_agent.session.importing import export_session
from graph_agent.storage.checkpoints.open import open_reader
from tests.support.commits import committed
from tests.support.postgres_server import PostgresServer, on_postgres
from tests.support.pruning import agent, take_step
from tests.support.sessions import noted

pytestmark = pytest.mark.sampled(2)  # one kind of database for each test, in turn

STORED = {"sqlite": ("writes", "value", "rowid"), "postgres": ("checkpoint_writes", "blob", "ctid")}
"""Kind of database → the table of its writes, the column of their values, and that of the row's address."""
DAMAGES = (
    ("no parent", 3, "UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE {step}"),
    ("unknown parent", 9, "UPDATE checkpoints SET parent_checkpoint_id = '1f000000' WHERE {step}"),
    ("wrong parent", 9, "UPDATE checkpoints SET parent_checkpoint_id = (SELECT min(checkpoint_id) FROM checkpoints)"
    " WHERE {step}"),
    ("no checkpoint", 2, "DELETE FROM checkpoints WHERE {step}"),
    ("newest without parent", 11, "UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE {step}"),
    ("one write of two", 1, "DELETE FROM {writes} WHERE {row} = (SELECT max({row}) FROM {writes} WHERE {at}"
    " AND channel = 'events')"),
    ("write of messages", 3, "DELETE FROM {writes} WHERE {at} AND channel = 'messages'"),
    ("unreadable write", 1, "UPDATE {writes} SET {value} = substr({value}, 1, length({value}) / 2) WHERE {at}"
    " AND channel = 'messages'"),
)  # fmt: skip
"""Name, step of the session, and statement."""


def damage(kind: str, step: int, sql: str) -> str:
    """The statement for one kind of database."""
    writes, value, row = STORED[kind]
    number = "CAST(metadata ->> 'step' AS int)"
    chosen = f"{number} = {step} AND checkpoint_ns = ''"
    at = f"checkpoint_id = (SELECT checkpoint_id FROM checkpoints WHERE {chosen})"
    return sql.format(step=chosen, at=at, writes=writes, value=value, row=row)


async def stored_session(url: str) -> None:
    """Store a session: a wave of two calls, an answer, and a wave that waits for a person."""
    async with open_saver(url) as saver, open_store(url) as store:
        for number, step in enumerate(("wave", "answer", "ask")):
            await take_step(saver, step, number)
        await noted(store, "s1")  # creates the tables of the Store


async def events(url: str, **options: Any) -> Any:
    async with open_saver(url) as saver:
        return await SessionMemory(agent(saver, [])).get_session_events("s1", **options)


async def newest_events(url: str) -> Any:
    return await events(url, last=3)


async def later_events(url: str) -> Any:
    return await events(url, after=1)


async def state(url: str) -> Any:
    async with open_saver(url) as saver:
        found = await agent(saver, []).aget_state({"configurable": {"thread_id": "s1"}})
        return [str(message) for message in found.values["messages"]], found.values["status"], found.next


async def status(url: str) -> Any:
    async with open_saver(url) as saver:
        return await Session(agent(saver, []), "s1").status()


async def events_in_the_terminal(url: str) -> Any:
    async with open_reader(url) as saver:
        return await EventReader(None, saver, "s1").read_all()


async def exported_events(url: str) -> Any:
    return [line["event"] async for line in export_session(url, "s1") if line["type"] == "event"]


async def pruned_events(url: str) -> Any:
    """What remains of a session that is pruned; the reason if it is skipped."""
    [done] = (await prune(url, keep_last=1)).sessions
    if done.skipped is not None:
        raise DamagedSessionError(f"{done.id!r}: {done.skipped}")
    return await events(url)


async def continued(url: str) -> Any:
    """The events before a further input, which the session receives."""
    async with open_saver(url) as saver:
        session = Session(agent(saver, ["Later."]), "s1")
        await session.run("And now?")
        return (await session.events())[:10]


async def resumed(url: str) -> Any:
    async with open_saver(url) as saver:
        session = Session(agent(saver, ["No more actions.", "Done."]), "s1")
        before = await session.events()
        await session.resume("yes")
        return (await session.events())[: len(before)]


READ_WHOLE = (state, events, exported_events, resumed, continued, pruned_events)
"""Readers that need all messages and events."""
READ_PART = (status, events_in_the_terminal, newest_events, later_events)
"""Readers that need a part; they return it whole, or none of it."""


async def outcome(read: Callable[[str], Awaitable[Any]], url: str) -> Any:
    """What a reader returns; or whether its `DamagedSessionError` names the session and nothing is stored."""
    before = committed(url)
    try:
        return await read(url)
    except DamagedSessionError as error:
        return ("damaged", "'s1'" in str(error), committed(url) == before)


DAMAGED = ("damaged", True, True)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=on_postgres)])
async def test_no_reader_shortens_a_damaged_session_and_nothing_is_appended(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    file = tmp_path / "whole.db"
    whole = f"sqlite:///{file}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    await stored_session(whole)
    parts = {read: await read(whole) for read in READ_PART}

    found = {}
    for name, step, sql in DAMAGES:
        with ExitStack() as stack:
            if kind == "sqlite":
                url = f"sqlite:///{shutil.copy(file, tmp_path / f'{name}.db')}"
                with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database, database:
                    changed = database.execute(damage(kind, step, sql)).rowcount
            else:
                server: PostgresServer = request.getfixturevalue("postgres")
                url = stack.enter_context(server.database(like=whole))
                with psycopg.connect(url) as connection:
                    changed = connection.execute(damage(kind, step, sql).encode()).rowcount
            read_whole = {read.__name__: await outcome(read, url) for read in READ_WHOLE}
            in_part = {
                read.__name__: await outcome(read, url) in (whole_part, DAMAGED) for read, whole_part in parts.items()
            }
            found[name] = changed > 0, read_whole, in_part

    expected = {read.__name__: DAMAGED for read in READ_WHOLE}, {read.__name__: True for read in READ_PART}
    assert found == {name: (True, *expected) for name, _, _ in DAMAGES}
