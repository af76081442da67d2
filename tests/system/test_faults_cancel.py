"""A session cancelled or aborted at any turn of the event loop resumes and settles its calls truthfully."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from graph_agent.core.state.registry import _under_way
from tests.support.fault_agent import ANSWER, open_watched_saver
from tests.support.fault_session import Watched, turns

VARIANTS: dict[str, dict[str, Any]] = {
    "native-ledger": {"ledger": True},
    "waves": {"structured": True},
    "blocking": {"blocking": True, "ledger": True},
}
FIRST = {"resume": 0, "input": 1, "abort": 2}
"""The turn of the first fault, another one for each way to go on."""
STEPS = [12, pytest.param(1, marks=pytest.mark.thorough)]
"""Turns between two faults."""
BLOCKING = {12: 28, 1: 7}
"""The turns between two faults of a run with threads, by the step of the others: it takes as many as it likes."""


async def cancelled(task: asyncio.Task[Any]) -> bool:
    """Cancel a task and wait for its end; False if it had already ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return task.cancelled()


def another(watched: Watched | None, variant: str, session_id: str) -> Watched:
    """A session for the next fault, of the same agent where that can be."""
    if watched is None or watched.blocking:
        return Watched(**VARIANTS[variant])
    watched.begin(session_id)
    return watched


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["resume", "input"])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_a_session_cancelled_at_any_turn_goes_on(variant: str, how: str, step: int) -> None:
    faults: list[str] = []
    watched: Watched | None = None
    at, over = FIRST[how], False
    while not over:
        watched = another(watched, variant, f"turn-{at}")
        task = asyncio.create_task(watched.session.run("go"))
        await turns(task, at)
        over = not await cancelled(task)
        stored = await watched.stored()
        await watched.go_on(how)
        found = await watched.untrue(stored, ledger=watched.ledger)
        faults += [f"cancelled at turn {at}: {fault}" for fault in found]
        at += BLOCKING[step] if variant == "blocking" else step

    assert (faults, dict(_under_way), at > 50) == ([], {}, True)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("variant", VARIANTS)
async def test_a_session_aborted_at_any_turn_settles_and_is_usable(variant: str, step: int) -> None:
    faults: list[str] = []
    watched: Watched | None = None
    at, over = FIRST["abort"], False
    while not over:
        watched = another(watched, variant, f"turn-{at}")
        task = asyncio.create_task(watched.session.run("go"))
        await turns(task, at)
        over = task.done()
        reached = await watched.session.abort()
        result = await task
        ended = (result.status, result.stop_reason, result.answer if result.status == "COMPLETED" else "")
        # An abort that finds the whole answer given, and only the end to be stored, changes nothing.
        allowed = [("COMPLETED", "completed", ANSWER), *([("ABORTED", "aborted", "")] if reached else [])]
        faults += [f"aborted at turn {at}: {ended}"] if ended not in allowed else []
        stored = await watched.stored()
        await watched.session.run("go on")
        found = await watched.untrue(stored, ledger=False)
        faults += [f"aborted at turn {at}: {fault}" for fault in found]
        at += BLOCKING[step] if variant == "blocking" else step

    assert (faults, dict(_under_way), at > 50) == ([], {}, True)


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("how", ["resume", "input"])
async def test_a_session_on_sqlite_cancelled_at_any_boundary_goes_on(how: str, step: int, tmp_path: Path) -> None:
    left, reached = -1, ""
    task: asyncio.Task[Any] | None = None

    def reach(what: str) -> None:
        nonlocal left, reached
        if left == 0 and task is not None:
            reached = what
            task.cancel()
        left -= 1

    faults: list[str] = []
    at, over = FIRST[how], False
    async with open_watched_saver(tmp_path / "sessions.db") as saver:
        saver.reach = reach
        watched = Watched(structured=True, ledger=True, saver=saver, reach=reach)
        while not over:
            watched.begin(f"turn-{at}")
            left = at
            task = asyncio.create_task(watched.session.run("go"))
            with contextlib.suppress(asyncio.CancelledError):
                await task
            over = not task.cancelled()
            stored = await watched.stored()
            await watched.go_on(how)
            found = await watched.untrue(stored, ledger=True)
            faults += [f"cancelled at {reached}: {fault}" for fault in found]
            at += step

    assert (faults, dict(_under_way), at > 50) == ([], {}, True)
