"""Kills in every phase of a plan that overlaps its execution; another worker goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attack.fleet import Attack, database
from tests.attack.overlap_model import AHEAD, CANDIDATES, LEARNED, PREDICTED, STREAMED
from tests.attack.report import SCALE
from tests.support.postgres_server import on_postgres

pytestmark = pytest.mark.attack

WAYS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "streamed": ({"dispatch": "streamed"}, STREAMED),
    "learned": ({"dispatch": "streamed", "predict": "table"}, PREDICTED),
    "predicted": ({"predict": True}, AHEAD),
    "predicted by structured plans": ({"predict": True, "tool_calling": "wave"}, AHEAD),
    "candidates": ({"candidates": 3}, CANDIDATES),
}
"""Way → the fields of `LoopConfig`, and the phases of a plan."""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=on_postgres)])
@pytest.mark.parametrize("way", WAYS)
async def test_a_kill_in_a_phase_of_an_overlapping_plan_loses_and_repeats_nothing(
    way: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    settings, phases = WAYS[way]
    attack = Attack(f"plans that overlap, {way}, on {kind}", database(kind, request, tmp_path), tmp_path, settings)
    lived, unanswered = [], []
    async with attack.worker() as other:
        for _ in range(SCALE):
            for number, phase in enumerate(phases):
                session = f"s{number}"
                async with attack.worker() as victim:
                    for _ in range(LEARNED if way == "learned" else 0):
                        await attack.turn(victim, "learned", "look")
                    await victim.do("kill_in", "", phase)
                    text = attack.text(session, "look")
                    reply = await victim.do("run", session, text)
                    await attack.note(session, text, reply)
                    await attack.end(victim)
                lived += [] if "error" in reply else [phase]
                reply = await attack.note(session, text, await other.do("resume", session))
                unanswered += [] if "answer" in reply else [(phase, reply)]
                await attack.turn(other, session, "look")

    assert (await attack.found(), lived, unanswered) == ([], [], [])
