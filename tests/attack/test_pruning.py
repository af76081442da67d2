"""Pruning of random sessions, of one that runs in another process, and in a process that is killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from graph_agent import Session, SessionMemory
from graph_agent.errors import DamagedSessionError
from graph_agent.persistence import open_saver, prune
from tests.attack.report import SCALE, note_faults
from tests.support.agents import kinds
from tests.support.postgres_server import on_postgres
from tests.support.pruning import PRUNINGS, agent, differences, pruned_and_unpruned, read_all, take_step
from tests.support.warm_process import warm_python

pytestmark = pytest.mark.attack

INPUTS = 6 * SCALE
KILLS = 2 * SCALE
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=on_postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'a.db'}"


async def started(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        warm_python(), "-m", "tests.support.pruned_run", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )


async def test_a_session_that_runs_while_it_is_pruned_loses_nothing(url: str) -> None:
    runner = await started("run", url, str(INPUTS))
    assert runner.stdout is not None
    first = await asyncio.wait_for(runner.stdout.readline(), 60)
    removed = prunings = 0
    while not runner.stdout.at_eof() and runner.returncode is None:
        removed += (await prune(url, keep_last=1)).checkpoints
        prunings += 1
        if removed > 0 and runner.stdout.at_eof():
            break
        await asyncio.sleep(0)
    rest, _ = await asyncio.wait_for(runner.communicate(), 60)
    removed += (await prune(url, keep_last=1)).checkpoints
    async with open_saver(url) as saver:
        events = await Session(agent(saver, []), "s1").events()
        state = (await agent(saver, []).aget_state({"configurable": {"thread_id": "s1"}})).values

    note_faults("pruning of a session", "prunings", prunings)
    answers = (first + rest).decode().split("\n")[:-1]
    replies = [event["content"] for event in events if event["type"] == "agent_response"]
    one = ["user_message", "status", "plan", "tool_call", "tool_result", "plan", "agent_response", "status"]
    assert (runner.returncode, answers, replies) == (0, [f"Reply {n}." for n in range(INPUTS)], answers)
    assert (kinds(events), len(state["messages"]), removed > INPUTS) == (one * INPUTS, 4 * INPUTS, True)


async def test_readers_of_a_session_that_two_processes_prune_find_it_whole(url: str) -> None:
    runner = await started("run", url, str(INPUTS))
    assert runner.stdout is not None
    await asyncio.wait_for(runner.stdout.readline(), 60)
    pruners = [await started(how, url, str(60 * SCALE)) for how in ("prune", "split", "prune")]
    faults, reads = list[str](), 0
    async with open_saver(url) as saver:
        graph = agent(saver, [])
        session, memory = Session(graph, "s1"), SessionMemory(graph)

        async def listed() -> list[Any]:
            return [state async for state in graph.aget_state_history({"configurable": {"thread_id": "s1"}})]

        while any(process.returncode is None for process in (runner, *pruners)):
            for read in (session.events, lambda: memory.get_session_events("s1", last=3), session.status, listed):
                reads += 1
                try:
                    found = await read()
                except Exception as error:  # noqa: BLE001 - each is a fault
                    faults.append(repr(error))
                else:
                    faults += [] if found else [f"nothing was read: {read}"]
            await asyncio.sleep(0)
    codes = [(await each.communicate(), each.returncode)[1] for each in (runner, *pruners)]

    note_faults("pruning beside readers", "reads", reads, faults)
    assert (faults, codes, reads > 20) == ([], [0] * 4, True)


async def test_a_killed_pruning_leaves_every_checkpoint_as_it_was(url: str) -> None:
    async with open_saver(url) as saver:
        for number in range(4):
            await take_step(saver, "wave", number)
        first = sorted(id_ for namespace, id_ in await read_all(saver) if not namespace)
        await take_step(saver, "fork", 4, first[5])
        for number in range(5, 5 + KILLS):
            await take_step(saver, "delegate", number)
            before = await read_all(saver)
            pruner = await started("split" if number % 2 else "prune", url, "50")
            # A checkpoint that is removed between two reads of it is refused, also if it is read by its id.
            with suppress(DamagedSessionError):
                while len(await read_all(saver)) == len(before):
                    await asyncio.sleep(0)
            pruner.kill()
            await asyncio.wait_for(pruner.communicate(), 60)
            found = differences(before, await read_all(saver))
            note_faults("pruning of a session", "kills", 1, map(str, found))
            assert found == []
        await prune(url, keep_last=1)
        after = await read_all(saver)

    # A branch that a killed pruning had not finished is not kept as one.
    assert len(after) <= 12


@settings(
    max_examples=30 * SCALE,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(**PRUNINGS)
async def test_random_sessions_read_and_continue_as_before(
    steps: list[tuple[str, int]], position: int, replayed: bool, joined: bool
) -> None:
    found, pruned, unpruned = await pruned_and_unpruned(steps, position, replayed=replayed, joined=joined)

    assert (found, pruned) == ([], unpruned)
