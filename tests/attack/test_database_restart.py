"""Workers take turns while PostgreSQL is stopped and started again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.attack.fleet import SCALE, Attack, Worker
from tests.postgres_server import on_postgres, postgres_server

pytestmark = [pytest.mark.attack, on_postgres]


@pytest.mark.usefixtures("postgres")
async def test_restarts_of_the_database_lose_and_repeat_nothing(tmp_path: Path) -> None:
    context = postgres_server()
    server = await asyncio.to_thread(context.__enter__)
    attack = Attack("database restart", server.url("postgres"), tmp_path)
    try:
        async with attack.worker() as first, attack.worker() as second:
            over = asyncio.Event()
            taking = [asyncio.create_task(_take_turns(attack, (first, second), number, over)) for number in range(4)]
            for _ in range(4 * SCALE):
                begun = attack.figures.get("turns", 0)
                while attack.figures.get("turns", 0) < begun + 8:
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(server.stop)
                await asyncio.sleep(attack.random.random())
                await asyncio.to_thread(server.start)
                attack.count("restarts")
            over.set()
            await asyncio.gather(*taking)
            for number in range(4):
                await attack.turn(first, f"s{number}", "talk")

        assert await attack.found() == []
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def _take_turns(attack: Attack, workers: tuple[Worker, Worker], number: int, over: asyncio.Event) -> None:
    while not over.is_set():
        reply = await attack.turn(attack.random.choice(workers), f"s{number}")
        if "error" in reply:
            # As a client that tries again after a moment.
            await asyncio.sleep(0.2)
