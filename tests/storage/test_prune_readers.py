"""Reads of a session that is pruned between two of their statements, and prunings of one session at once."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graph_agent import ScriptedChatModel, Session, SessionMemory, create_graph_agent
from graph_agent.persistence import open_saver, prune
from graph_agent.session.history import EventReader
from graph_agent.storage.checkpoints import history_cache
from graph_agent.storage.checkpoints.pruning import plan, sessions
from tests.support.postgres_server import on_postgres
from tests.support.pruning import agent, differences, read_all, take_step

THREAD: Any = {"configurable": {"thread_id": "s1"}}
MOST_STATEMENTS = 60
"""Statements of one read, after which a test gives up."""


class Interrupted:
    """Does something once, in another thread, before the n-th statement of an SQLite connection."""

    def __init__(self, connection: sqlite3.Connection, number: int, work: Callable[[], None]) -> None:
        self._left = number
        self._work = work
        self.is_done = False
        connection.set_trace_callback(self._count)

    def _count(self, statement: str) -> None:
        if not statement.startswith(("SELECT", "WITH")):
            return
        self._left -= 1
        if self._left == 0:
            self.is_done = True
            other = threading.Thread(target=self._work)
            other.start()
            other.join()


def brief(event: Any) -> tuple[int | None, str, str]:
    """What identifies an event."""
    return event.get("seq"), event["type"], str(event.get("content", event.get("call_id", "")))


async def all_events(saver: Any) -> Any:
    return [*map(brief, await Session(agent(saver, []), "s1").events())]


async def newest_events(saver: Any) -> Any:
    return [*map(brief, await SessionMemory(agent(saver, [])).get_session_events("s1", last=3))]


async def followed_events(saver: Any) -> Any:
    return [*map(brief, await EventReader(agent(saver, []), saver, "s1").read() or ())]


async def terminal_events(saver: Any) -> Any:
    return [*map(brief, await EventReader(None, saver, "s1").read_all())]


async def blocking_state(saver: Any) -> Any:
    state = await asyncio.to_thread(agent(saver, []).get_state, THREAD)
    return [message.text for message in state.values["messages"]]


async def newest_of_the_history(saver: Any) -> Any:
    states = [state async for state in agent(saver, []).aget_state_history(THREAD)]
    return [message.text for message in states[0].values["messages"]]


async def outcome(read: Callable[[Any], Awaitable[Any]], saver: Any) -> Any:
    """What a reader returns, or its error."""
    try:
        return await read(saver)
    except Exception as error:  # noqa: BLE001 - each is a failure of the test
        return repr(error)


READERS = (all_events, newest_events, followed_events, terminal_events, blocking_state, newest_of_the_history)


@pytest.mark.parametrize(
    ("read", "length"),
    [*((read, "short") for read in READERS), (all_events, "split"), (terminal_events, "split"), (all_events, "kept")],
)
async def test_a_read_returns_the_whole_session_wherever_a_pruning_falls(
    read: Callable[[Any], Awaitable[Any]], length: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PART_BYTES", 0 if length == "split" else plan.PART_BYTES)
    monkeypatch.setattr(history_cache, "FEWEST_ENTRIES", 1 if length == "kept" else history_cache.FEWEST_ENTRIES)
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    async with open_saver(f"sqlite:///{first}") as saver:
        await take_step(saver, "wave", 0)
        await take_step(saver, "answer", 1)
        whole = [await read(saver)]
    shutil.copy(first, second)
    async with open_saver(f"sqlite:///{second}") as saver:
        await take_step(saver, "answer", 2)
        whole.append(await read(saver))

    async def continue_and_prune(url: str, *, continues: bool) -> None:
        if continues:
            async with open_saver(url) as other:
                await take_step(other, "answer", 2)
        await prune(url, keep_last=1)

    found, number, is_done = [], 0, True
    while is_done and (number := number + 1) < MOST_STATEMENTS:
        for continues in (False, True):
            url = f"sqlite:///{shutil.copy(first, tmp_path / f'{number}{continues}.db')}"
            async with open_saver(url) as saver:
                connection: sqlite3.Connection = vars(saver)["conn"]
                if length == "kept":
                    await read(saver)
                pruning = continue_and_prune(url, continues=continues)
                interrupted = Interrupted(connection, number, partial(asyncio.run, pruning))
                during = await outcome(read, saver)
                connection.set_trace_callback(None)
                is_done = interrupted.is_done
                if not is_done:
                    pruning.close()
                    continue
                later = await outcome(read, saver)
            found += [(number, continues, each) for each in (during, later) if each not in whole]

    assert (found, number > 2) == ([], True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=on_postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'a.db'}"


async def test_prunings_of_one_session_take_turns(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins when the other has read the session, and has removed nothing."""
    planned, go_on = asyncio.Event(), asyncio.Event()
    plan_session = sessions.plan_session

    async def stopping(*arguments: Any) -> Any:
        found = await plan_session(*arguments)
        planned.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(sessions, "plan_session", stopping)
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(["One.", "Two.", "Three."]), checkpointer=saver)
        for number in range(3):
            await Session(graph, "s1").run(f"Input {number}", input_id=f"i{number}")
        await take_step(saver, "wave", 4)
        before = await read_all(saver)
        first = asyncio.create_task(prune(url, keep_last=1))
        await planned.wait()
        second = asyncio.create_task(prune(url, keep_last=1))
        await asyncio.sleep(0)
        go_on.set()
        reports = [await first, await second]
        after = {at: found for at, found in (await read_all(saver)).items() if not at[0]}

    skipped = [each.skipped for report in reports for each in report.sessions]
    root = {at: found for at, found in before.items() if not at[0]}
    assert ([*filter(None, skipped)], differences(root, after)) == ([], [])
