"""Workers with different clocks run turns of the same sessions; one restarts with its clock set back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.attack.fleet import Attack
from tests.attack.report import SCALE
from tests.attack.worker import FOREIGN
from tests.support.postgres_server import on_postgres

pytestmark = pytest.mark.attack

CLOCKS_S = (0.0, -2.0, -30.0, 30.0)


@pytest.mark.parametrize("kind", ["sqlite", "langgraph", pytest.param("postgres", marks=on_postgres)])
async def test_clock_skew_loses_and_repeats_no_call(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    urls: dict[str, Any] = {"sqlite": f"sqlite:///{tmp_path}/s.db", "langgraph": f"{FOREIGN}{tmp_path}/s.db"}
    url = urls.get(kind) or request.getfixturevalue("postgres_url")
    attack = Attack(f"clock skew on {kind}", url, tmp_path)
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(attack.worker(clock_s)) for clock_s in CLOCKS_S)
        workers = await asyncio.gather(*starting)
        for _ in range(12 * SCALE):
            session = f"s{attack.random.randrange(3)}"
            await attack.turn(attack.random.choice(workers), session, "pay", "ask")
            attack.count("skewed")
    async with attack.worker(-60.0) as restarted:
        for number in range(3):
            await attack.turn(restarted, f"s{number}")

    assert await attack.found() == []
