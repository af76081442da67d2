"""Two workers on one database: one is killed in the middle of a turn, the other is paused past its lock meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.attack.fleet import Attack, Worker, database, drop_locks
from tests.attack.report import SCALE
from tests.support.postgres_server import on_postgres

pytestmark = pytest.mark.attack

_BOUNDARIES = 24
"""More than a turn with a wave has."""
_MID_WRITE_S = 0.004
"""Longer than a write of the saver takes mostly."""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=on_postgres)])
async def test_killed_and_paused_workers_lose_and_repeat_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = database(kind, request, tmp_path)
    attack = Attack(f"two workers on {kind}", url, tmp_path)
    async with AsyncExitStack() as stack:

        async def start() -> Worker:
            return await stack.enter_async_context(attack.worker())

        victim, other, spare = await asyncio.gather(start(), start(), start())
        for _ in range(4 * SCALE):
            spare_after = asyncio.create_task(start())
            await _kill_and_pause(attack, url, victim, other, spare)
            for _ in range(3):
                await _race(attack, other, spare)
            # The one that was paused is killed next.
            victim, other, spare = other, spare, await spare_after

    assert await attack.found() == []


async def _kill_and_pause(attack: Attack, url: str, victim: Worker, stale: Worker, other: Worker) -> None:
    at, after_s = attack.random.randrange(_BOUNDARIES), attack.random.random() * _MID_WRITE_S
    await victim.do("kill_at", "", f"{at} {after_s}")
    killed, paused = (attack.text(session, "pay", "wave", "wave") for session in ("killed", "paused"))
    dying, turn = victim.order("run", "killed", killed), stale.order("run", "paused", paused)
    async with attack.paused(stale, turn):
        await drop_locks(url)
        reply = await attack.answered(victim, "killed", dying)
        await attack.note("killed", killed, reply)
        await attack.end(victim)
        # As a person who resumes, or who sends the next message.
        if "error" in reply and attack.random.random() < 0.5:
            await attack.note("killed", killed, await other.do("resume", "killed"))
        await attack.turn(other, "killed", "talk")
        await attack.turn(other, "paused", "pay", "ask")
    await attack.note("paused", paused, await attack.answered(stale, "paused", turn))
    await attack.turn(other, "paused", "talk")


async def _race(attack: Attack, first: Worker, second: Worker) -> None:
    """Both take a turn of one session at the same time."""
    attack.count("races")
    await asyncio.gather(*(attack.turn(worker, "raced", "pay", "wave") for worker in (first, second)))
