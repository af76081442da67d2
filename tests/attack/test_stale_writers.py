"""A worker is paused in the middle of a turn and loses its lock; another continues the session; then it wakes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.fleet import Attack, Worker, database, drop_locks
from tests.attack.report import SCALE
from tests.support.postgres_server import on_postgres

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=on_postgres)])
async def test_a_paused_worker_overwrites_and_repeats_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = database(kind, request, tmp_path)
    attack = Attack(f"stale writers on {kind}", url, tmp_path)
    async with attack.worker() as first, attack.worker() as second:
        for number in range(10 * SCALE):
            workers = (first, second) if number % 2 else (second, first)
            await _pause_one(attack, url, f"s{number % 3}", *workers)

    assert await attack.found() == []


async def _pause_one(attack: Attack, url: str, session: str, stale: Worker, other: Worker) -> None:
    text = attack.text(session, "pay", "wave")
    turn = stale.order("run", session, text)
    async with attack.paused(stale, turn):
        await drop_locks(url)
        await attack.turn(other, session, "pay", "ask")
    await attack.note(session, text, await attack.answered(stale, session, turn))
    # The next turn settles open calls.
    await attack.turn(other, session, "talk")
