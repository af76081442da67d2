"""A worker is paused in the middle of a turn and loses its lock; another goes on with the session; then it wakes up."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import psycopg
import pytest

from tests.attack.fleet import SCALE, Attack, Worker
from tests.postgres_server import on_postgres

pytestmark = pytest.mark.attack

SUFFIX = ".sessions-lock"


def drop_locks(url: str) -> None:
    """End the connections to a PostgreSQL database that hold locks of sessions."""
    query = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'graph-agent locks' AND datname = current_database()"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(query)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=on_postgres)])
async def test_a_worker_that_was_paused_overwrites_and_repeats_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    file = tmp_path / "s.db"
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{file}"
    attack = Attack(f"stale writers on {kind}", url, tmp_path)

    def lose_locks() -> None:
        if kind == "postgres":
            drop_locks(url)
        else:
            # As somebody does who tidies up a folder: those who come after it lock another file.
            file.with_name(file.name + SUFFIX).unlink(missing_ok=True)

    async with attack.worker() as first, attack.worker() as second:
        for number in range(12 * SCALE):
            workers = (first, second) if number % 2 else (second, first)
            await _pause_one(attack, f"s{number % 3}", *workers, lose_locks=lose_locks)

    assert await attack.found() == []


async def _pause_one(attack: Attack, session: str, stale: Worker, other: Worker, *, lose_locks: object) -> None:
    assert callable(lose_locks)
    text = attack.words("pay")
    turn = stale.order("run", session, text)
    # Its model and its tool take about as long.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(turn), attack.random.random() * 0.2)
    stale.signal(signal.SIGSTOP)
    attack.count("pauses", 0 if turn.done() else 1)
    await asyncio.to_thread(lose_locks)
    await attack.turn(other, session, attack.random.choice(["pay", "ask"]))
    stale.signal(signal.SIGCONT)
    async with asyncio.timeout(120):
        attack.note(session, text, await turn)
    # Whatever was left open is settled by the next turn.
    await attack.turn(other, session, "talk")
