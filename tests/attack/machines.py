"""Machines of a cluster: servers with an own process and port each, on one PostgreSQL database."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import httpx

from tests.attack.machine_agent import AGENT, EFFECTS
from tests.interfaces.server.process import Served, serving

_STARTS = 4
_HEALTH_EVERY_S = 0.5
_HEALTH_WITHIN_S = 3.0
_OPTIONS = ("--set", "keepalive_s=1", "--set", "concurrent_requests=2000")


class Machine:
    """A `graph-agent serve` that can be killed, paused and started again.

    Args:
        folder: Its own folder.
        database: The database of all machines.
        effects: The file of effects of all machines.
    """

    def __init__(self, folder: Path, database: str, effects: Path) -> None:
        self.healthy = False
        """Whether the load balancer sends requests to it."""
        self.killed_at = 0.0
        """Monotonic time of its last kill."""
        self.paused_at = 0.0
        """Monotonic time of its last pause."""
        folder.mkdir()
        self._folder = folder
        self._database = database
        self._effects = effects
        self._context: AbstractContextManager[Served] | None = None
        self._served: Served | None = None

    @property
    def url(self) -> str:
        """Its address; another one after each start."""
        assert self._served is not None
        return self._served.url

    @property
    def log(self) -> str:
        """What it has logged."""
        file = self._folder / "log"
        return file.read_text() if file.exists() else ""

    async def start(self) -> None:
        """Start it, and wait until it is ready; a start that fails, as without its database, is repeated.

        Raises:
            AssertionError: When it has failed some times in a row.
        """
        options = ("--db", self._database, *_OPTIONS)
        for attempt in range(_STARTS):
            context = serving(self._folder, *options, agent=AGENT, environment={EFFECTS: str(self._effects)})
            try:
                self._served = await asyncio.to_thread(context.__enter__)
            except AssertionError:
                if attempt == _STARTS - 1:
                    raise
            else:
                self._context = context
                break
        self.healthy = True

    async def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        if self._context is None:
            return
        self.healthy, self.killed_at = False, time.monotonic()
        context, self._context = self._context, None
        await asyncio.to_thread(context.__exit__, None, None, None)

    def pause(self) -> None:
        """Stop its process with SIGSTOP; connections stay open."""
        assert self._served is not None
        self.paused_at = time.monotonic()
        self._served.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let its process continue."""
        assert self._served is not None
        self._served.process.send_signal(signal.SIGCONT)


class LoadBalancer:
    """Chooses healthy machines, by their health checks.

    Args:
        machines: The machines.
        seed: Seed of its choices.
    """

    def __init__(self, machines: list[Machine], seed: int) -> None:
        self._machines = machines
        self._random = random.Random(seed)

    async def choose(self) -> Machine:
        """Wait for a healthy machine, and return one."""
        while not (healthy := [machine for machine in self._machines if machine.healthy]):
            await asyncio.sleep(0.05)
        return self._random.choice(healthy)

    @asynccontextmanager
    async def checking(self) -> AsyncIterator[None]:
        """Check the machines' health within the context."""
        checks = [asyncio.create_task(self._check(machine)) for machine in self._machines]
        try:
            yield
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    @staticmethod
    async def _check(machine: Machine) -> None:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=_HEALTH_WITHIN_S) as http:
            while True:
                killed_at = machine.killed_at
                try:
                    up = (await http.get(f"{machine.url}/health")).is_success
                except httpx.HTTPError:
                    up = False
                if machine.killed_at == killed_at:
                    machine.healthy = up
                await asyncio.sleep(_HEALTH_EVERY_S)
