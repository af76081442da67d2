"""Instances of Aegra are killed and paused in the middle of runs; others finish the runs."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from deploy.aegra.cluster import Cluster
from deploy.aegra.scenarios import DONE, WAVE, Stop, Takeover, asking, client_of, owner_of, take_over, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

LONGEST_RUN_S = 4.5
"""A little more than the longest payment takes."""


async def _stop_repeatedly(cluster: Cluster, stops: list[Stop], takeovers: list[Takeover]) -> list[str]:
    for stop in stops:
        takeovers.append(await take_over(cluster, stop))
        cluster.replace_killed()
    return [f"{stop}: {seen.faults}" for stop, seen in zip(stops, takeovers, strict=True) if seen.faults]


async def test_the_wave_of_a_killed_instance_is_finished_by_the_other(
    aegra: Cluster, rounds: int, takeovers: list[Takeover]
) -> None:
    faults = await _stop_repeatedly(aegra, [Stop(kills=True)] * rounds, takeovers)

    assert (faults, [seen.taken for seen in takeovers]) == ([], [True] * rounds)


async def test_an_instance_paused_past_its_lease_writes_and_repeats_nothing(
    aegra: Cluster, rounds: int, takeovers: list[Takeover]
) -> None:
    faults = await _stop_repeatedly(aegra, [Stop(kills=False)] * rounds, takeovers)

    assert (faults, [seen.taken for seen in takeovers]) == ([], [True] * rounds)


async def test_an_instance_may_be_paused_at_any_time_and_for_any_time(
    aegra: Cluster, rounds: int, takeovers: list[Takeover]
) -> None:
    chosen = random.Random(rounds)
    stops = [
        Stop(kills=False, after_s=chosen.uniform(0, LONGEST_RUN_S), pause_s=chosen.uniform(1, 20))
        for _ in range(rounds)
    ]

    assert await _stop_repeatedly(aegra, stops, takeovers) == []


async def test_an_instance_may_be_killed_at_any_time(aegra: Cluster, rounds: int, takeovers: list[Takeover]) -> None:
    chosen = random.Random(rounds)
    stops = [Stop(kills=True, after_s=chosen.uniform(0, LONGEST_RUN_S)) for _ in range(rounds)]

    assert await _stop_repeatedly(aegra, stops, takeovers) == []


async def test_two_runs_of_one_thread_follow_each_other(aegra: Cluster) -> None:
    first, second = (client_of(instance) for instance in aegra.instances)
    async with first, second:
        thread = (await first.threads.create())["thread_id"]
        runs = [
            (await client.runs.create(thread, "payments", input=asking(WAVE)))["run_id"] for client in (first, second)
        ]
        for run in runs:
            await first.runs.join(thread, run)
        statuses = [(await second.runs.get(thread, run))["status"] for run in runs]

    assert (statuses, len(aegra.payments(thread))) == (["success", "success"], 6)


async def test_a_killed_run_that_a_later_one_has_followed_is_not_repeated(aegra: Cluster) -> None:
    async with client_of(aegra.instances[0]) as client:
        thread = (await client.threads.create())["thread_id"]
        run = (await client.runs.create(thread, "payments", input=asking(WAVE)))["run_id"]
        owner = await until(lambda: owner_of(aegra, run), "the owner of the run")

    async def one_paid() -> bool:
        return bool(aegra.payments(thread))

    await until(one_paid, "a payment")
    owner.kill()
    async with client_of(next(each for each in aegra.instances if each is not owner)) as client:
        later: Any = await client.runs.wait(thread, "payments", input=asking("charge joe 10"))
        await client.runs.join(thread, run)
        killed = await client.runs.get(thread, run)
        history: Any = await client.threads.get_state(thread)
    aegra.replace_killed()

    paid = Counter(line["customer"] for line in aegra.payments(thread))
    inputs = [message["content"] for message in history["values"]["messages"] if message["type"] == "human"]
    assert (killed["status"], inputs, later["messages"][-1]["content"]) == (
        "error",
        [WAVE, "charge joe 10"],
        DONE.format(10, "joe"),
    )
    assert (max(paid.values()), paid["joe"]) == (1, 1)
