"""Workers run turns while PostgreSQL is stopped and started again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.attack.fleet import Attack, Worker
from tests.attack.report import SCALE
from tests.support.postgres_server import on_postgres, postgres_server

pytestmark = [pytest.mark.attack, on_postgres]


@pytest.mark.usefixtures("postgres")
async def test_database_restarts_lose_and_repeat_no_call(tmp_path: Path) -> None:
    context = postgres_server()
    server = await asyncio.to_thread(context.__enter__)
    attack = Attack("database restart", server.url("postgres"), tmp_path)
    up, over = asyncio.Event(), asyncio.Event()
    up.set()
    try:
        async with attack.worker() as first, attack.worker() as second:
            clients = [
                asyncio.create_task(_take_turns(attack, (first, second), f"s{number}", up, over)) for number in range(4)
            ]
            for _ in range(2 * SCALE):
                await attack.noted(attack.figures["turns"] + 8)
                up.clear()
                begun = attack.figures["turns"]
                await asyncio.to_thread(server.stop)
                # Turns are under way, and one at least ends without its database.
                await attack.noted(begun + 1)
                await asyncio.to_thread(server.start)
                attack.count("restarts")
                up.set()
            over.set()
            await asyncio.gather(*clients)
            for number in range(4):
                await attack.turn(first, f"s{number}", "talk")

        assert await attack.found() == []
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def _take_turns(
    attack: Attack, workers: tuple[Worker, Worker], session: str, up: asyncio.Event, over: asyncio.Event
) -> None:
    while not over.is_set():
        reply = await attack.turn(attack.random.choice(workers), session)
        if "error" in reply:
            # As a client that retries when the service is back.
            await up.wait()
