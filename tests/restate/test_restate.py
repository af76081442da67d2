"""An agent behind a real Restate server: killed workers, approvals, cancellation, errors, restarts."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from typing import Any

import pytest

from tests.restate.fleet import Fleet
from tests.restate.server import WITHIN_S
from tests.support.postgres_server import on_postgres

pytestmark = [pytest.mark.restate, pytest.mark.asyncio(loop_scope="module")]

KILLS = int(os.environ.get("GRAPH_AGENT_RESTATE_KILLS", "20"))
WITHIN_A_KILL_S = 2.0
UNKNOWN = (
    "The run was interrupted before this call's result was recorded. It is not known whether the call ran or took "
    "effect; check before repeating it."
)
ONCE = Counter({"book": 1, "charge": 1, "look": 1})


async def in_mid_wave(fleet: Fleet, session: str, text: str, key: str = "") -> asyncio.Task[Any]:
    """Begin an input, and wait until `book` is finished and the others have taken effect."""
    fleet.close_gate()
    answer = asyncio.create_task(fleet.call(session, "run", {"input": text}, key=key))
    await fleet.until(session, lambda calls: calls == {"book": "finished", "charge": "started", "look": "started"})
    async with asyncio.timeout(WITHIN_S):
        while fleet.effects(text) != ONCE:
            await asyncio.sleep(0.01)
    return answer


async def kill_in_mid_wave(fleet: Fleet, number: int) -> tuple[float, dict[str, Any]]:
    """Kill the owner of a wave; return the seconds to the answer, and what was seen."""
    text, key = f"wave {number}", f"key-{number}"
    answer = await in_mid_wave(fleet, "killed", text, key)
    killed = fleet.owner(text)
    fleet.open_gate()
    begun = time.monotonic()
    await fleet.kill(killed)
    result = await answer
    took = time.monotonic() - begun
    await (await fleet.start()).ready()
    effects = fleet.effects(text)
    repeated = await fleet.call("killed", "run", {"input": text}, key=key)
    return took, {
        "answer": result["answer"],
        "book": result["results"][f"book-wave-{number}"],
        "charge is unknown": result["results"][f"charge-wave-{number}"]["error"] == UNKNOWN,
        "look": result["results"][f"look-wave-{number}"],
        "writes": {name: effects[name] for name in ("book", "charge")},
        "other worker": fleet.owner(text) != killed,
        "same result again": repeated == result and fleet.effects(text) == effects,
    }


async def kills(fleet: Fleet, kind: str, figures: list[str]) -> tuple[list[dict[str, Any]], float]:
    """Kill the owner of several waves; return what was seen of each, and the longest time to an answer."""
    seen = [await kill_in_mid_wave(fleet, number) for number in range(KILLS)]
    times = [took for took, _ in seen]
    figures.append(
        f"{kind}: {KILLS} kills, median {statistics.median(times):.2f} s, worst {max(times):.2f} s to the answer"
    )
    return [found for _, found in seen], max(times)


def survived() -> list[dict[str, Any]]:
    """What is to be seen of each kill."""
    return [
        {
            "answer": f"answer to wave {number}",
            "book": f"booked for wave {number}",
            "charge is unknown": True,
            "look": f"looked up for wave {number}",
            "writes": {"book": 1, "charge": 1},
            "other worker": True,
            "same result again": True,
        }
        for number in range(KILLS)
    ]


async def test_killed_workers_with_sqlite_lose_and_repeat_no_call(fleet: Fleet, figures: list[str]) -> None:
    seen, longest = await kills(fleet, "SQLite", figures)

    assert (seen, longest < WITHIN_A_KILL_S) == (survived(), True)


@on_postgres
async def test_killed_workers_with_postgres_lose_and_repeat_no_call(postgres_fleet: Fleet, figures: list[str]) -> None:
    seen, longest = await kills(postgres_fleet, "PostgreSQL", figures)

    assert (seen, longest < WITHIN_A_KILL_S) == (survived(), True)
