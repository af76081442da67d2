"""Machines of a cluster are killed and paused, and its database restarts, while many sessions run."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.attack.customer import Customer, Recoveries, new_client
from tests.attack.machines import LoadBalancer, Machine
from tests.attack.oracle import Effects, Record, Turn, Violation, violations
from tests.attack.report import ROWS, SCALE, SEED, Row, in_words
from tests.support.postgres_server import PostgresServer, on_postgres, postgres_server

pytestmark = [pytest.mark.attack, on_postgres]

MACHINES = 4
SESSIONS = min(20 * SCALE, 200)
LASTS_S = min(20 * SCALE, 120)
PAUSE_S = 18.0
"""Longer than the locks of a paused process are held."""
KINDS = ("pay", "pay", "wave", "ask", "talk")
_FINISH_S = 300


class Cluster:
    """The machines, their database and their clients.

    Args:
        machines: The machines.
        server: Their database.
        recoveries: Where a restart of the database is recorded.
    """

    def __init__(self, machines: list[Machine], server: PostgresServer, recoveries: Recoveries) -> None:
        self.figures: Counter[str] = Counter()
        self.turns: list[Turn] = []
        self._machines = machines
        self._server = server
        self._recoveries = recoveries
        self._paused: Machine | None = None
        self._random = random.Random(SEED)
        self._over = asyncio.Event()

    async def attack(self) -> None:
        """Kill a machine every few seconds, pause one, and restart the database once, while clients take turns."""
        pausing = asyncio.create_task(self._pause(self._machines[0]))
        starting: list[asyncio.Task[None]] = []
        begun = time.monotonic()
        while (elapsed_s := time.monotonic() - begun) < LASTS_S:
            await asyncio.sleep(self._random.uniform(1, 5))
            if elapsed_s > LASTS_S / 2 and not self.figures["restarts"]:
                await self._restart_database()
            running = [each for each in self._machines if each.healthy and each is not self._paused]
            if len(running) > 1:
                victim = self._random.choice(running)
                await victim.kill()
                self.figures["kills"] += 1
                starting.append(asyncio.create_task(victim.start()))
        await asyncio.gather(pausing, *starting)
        self._over.set()

    async def _pause(self, machine: Machine) -> None:
        await asyncio.sleep(1)
        self._paused = machine
        machine.pause()
        self.figures["stops"] += 1
        await asyncio.sleep(PAUSE_S)
        machine.go_on()
        self._paused = None

    async def _restart_database(self) -> None:
        self.figures["restarts"] += 1
        self._recoveries.restarted_at = time.monotonic()
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._server.start)

    async def take_turns(self, customer: Customer) -> None:
        """Take turns of one session until the attack is over."""
        choose = random.Random(customer.session)
        while not self._over.is_set():
            text = f"{choose.choice(KINDS)} {len(self.turns)}"
            self.turns.append((customer.session, text))
            await customer.take_turn(text)
            await asyncio.sleep(choose.uniform(0, SESSIONS / 20))


@asynccontextmanager
async def _started(folder: Path, server: PostgresServer, effects: Path) -> AsyncIterator[list[Machine]]:
    machines = [Machine(folder / f"m{number}", server.url("postgres"), effects) for number in range(MACHINES)]
    try:
        await asyncio.gather(*(machine.start() for machine in machines))
        yield machines
    finally:
        await asyncio.gather(*(machine.kill() for machine in machines))


@pytest.mark.usefixtures("postgres")
async def test_sessions_survive_kills_pauses_and_a_database_restart(tmp_path: Path) -> None:
    record, recoveries, effects = Record(), Recoveries(), tmp_path / "effects"
    context = postgres_server()
    server = await asyncio.to_thread(context.__enter__)
    try:
        async with _started(tmp_path, server, effects) as machines, new_client() as http:
            cluster, balancer = Cluster(machines, server, recoveries), LoadBalancer(machines, seed=SEED)
            customers = [Customer(f"s{i}", balancer, http, record, recoveries) for i in range(SESSIONS)]
            async with balancer.checking():
                clients = [asyncio.create_task(cluster.take_turns(customer)) for customer in customers]
                await cluster.attack()
                async with asyncio.timeout(_FINISH_S):
                    await asyncio.gather(*clients)
                    stored = {customer.session: await customer.read() for customer in customers}
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)
    histories = {session: found.messages for session, found in stored.items()}
    found = violations(record, Effects(effects).read(), histories, cluster.turns)
    states = {session: (each.status, each.waiting) for session, each in stored.items()}
    found += [
        Violation("lost", f"{session}: is {state}") for session, state in states.items() if state != ("COMPLETED", None)
    ]
    _summarize(cluster, record, recoveries, Effects(effects).read().total(), found)

    assert found == []


def _summarize(
    cluster: Cluster, record: Record, recoveries: Recoveries, effects: int, found: Sequence[Violation]
) -> None:
    figures = Counter(
        {"turns": len(cluster.turns), **cluster.figures, "acknowledged": len(record.answers), "effects": effects}
    )
    times = [
        f"recovery after a {name}: {_in_words(taken)}"
        for name, taken in vars(recoveries).items()
        if isinstance(taken, list)
    ]
    load = f"load average {os.getloadavg()[0]:.1f}"
    notes = [f"{SESSIONS} sessions", *in_words(record.errors), *times, load]
    ROWS.append(Row(f"sessions on {MACHINES} machines", figures, found, notes))


def _in_words(taken_s: list[float]) -> str:
    if len(taken_s) < 2:
        return f"{len(taken_s)} inputs"
    at = statistics.quantiles(taken_s, n=100, method="inclusive")
    return f"{len(taken_s)} inputs, p50 {at[49]:.2f} s, p99 {at[98]:.2f} s, most {max(taken_s):.2f} s"
