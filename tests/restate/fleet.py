"""Worker processes that serve one agent at one address, and their file of effects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.restate.server import WITHIN_S, RestateServer

_ROOT = Path(__file__).parents[2]


class Worker:
    """A worker process.

    Args:
        process: The process.
        log: Its log file.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    async def ready(self) -> None:
        """Wait until it takes connections."""
        async with asyncio.timeout(WITHIN_S):
            while "Running on" not in self.log.read_text():
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Fleet:
    """Workers of one agent; all bind one port, and the system shares connections among them.

    Args:
        server: Restate's server.
        folder: The folder of the effects, in which the workers run.
        name: The object's name.
    """

    def __init__(self, server: RestateServer, folder: Path, name: str) -> None:
        self.server = server
        self.name = name
        self.workers: list[Worker] = []
        self.command: list[str] = []
        """Arguments of Python that start a worker."""
        self._folder = folder
        self._started = 0
        # Bound and not listening: it reserves the port, and receives no connection.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._reserved.getsockname()[1]}"

    async def start(self) -> Worker:
        """Start a worker; await its `ready`."""
        self._started += 1
        log = self._folder / f"worker{self._started}.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                cwd=self._folder,
            )
        worker = Worker(process, log)
        self.workers.append(worker)
        return worker

    async def register(self) -> None:
        """Register the address that all workers share."""
        await self.server.register(f"http://{self.address}")

    async def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            await worker.kill()
        self._reserved.close()

    async def kill(self, pid: int) -> None:
        """Kill the worker with a process id."""
        worker = next(worker for worker in self.workers if worker.process.pid == pid)
        self.workers.remove(worker)
        await worker.kill()

    async def call(self, session: str, handler: str, body: Any = None, *, key: str = "") -> Any:
        """Invoke a handler, and return its result."""
        reply = await self.server.call(f"{self.name}/{session}/{handler}", body, key=key)
        assert reply.is_success, reply.text
        return reply.json() if reply.content else None

    async def refusal(self, session: str, handler: str, body: Any) -> tuple[int, str]:
        """Invoke a handler, and return the status and the text of its error."""
        reply = await self.server.call(f"{self.name}/{session}/{handler}", body)
        return reply.status_code, reply.json()["message"]

    async def until(self, session: str, is_reached: Callable[[dict[str, str]], bool]) -> None:
        """Wait until the states of a session's calls, by tool, are as wanted."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                status = await self.call(session, "status")
                if is_reached({call["name"]: call["state"] for call in status["calls"]}):
                    return
                await asyncio.sleep(0.02)

    def open_gate(self) -> None:
        """Let the calls that wait end."""
        (self._folder / "gate").touch()

    def close_gate(self) -> None:
        """Make later calls wait after their effect."""
        (self._folder / "gate").unlink(missing_ok=True)

    def effects(self, text: str) -> Counter[str]:
        """How often each tool took effect for a text of the user."""
        return Counter(name for name, of, _ in self._lines() if of == text)

    def owner(self, text: str) -> int:
        """The id of the process that had the newest effect for a text."""
        return int([pid for _, of, pid in self._lines() if of == text][-1])

    def _lines(self) -> list[Any]:
        file = self._folder / "effects"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@asynccontextmanager
async def fleet_of_two(
    server: RestateServer, folder: Path, name: str, command: Callable[[str], list[str]]
) -> AsyncIterator[Fleet]:
    """Two workers that are registered and take connections.

    Args:
        server: Restate's server.
        folder: Same as for `Fleet`.
        name: The object's name.
        command: Returns the arguments of Python that start a worker at an address.
    """
    fleet = Fleet(server, folder, name)
    fleet.command = command(fleet.address)
    try:
        for worker in (await fleet.start(), await fleet.start()):
            await worker.ready()
        await fleet.register()
        yield fleet
    finally:
        await fleet.close()
