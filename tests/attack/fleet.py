"""The workers of an attack, its record and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.attack.oracle import Effects, Record, Turn, Violation, violations
from tests.attack.report import ROWS, SEED, Row, in_words
from tests.attack.worker import graph_over
from tests.support import postgres_server
from tests.support.warm_process import warm_python

_WITHIN_S = 180
_ROOT = Path(__file__).parents[2]


def database(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The address of an empty database."""
    url: str = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{folder}/s.db"
    return url


async def drop_locks(url: str) -> None:
    """Make every worker lose the locks of its sessions."""
    if url.startswith("sqlite:///"):
        # As a cleanup of the folder does; later processes lock another file.
        file = Path(url.removeprefix("sqlite:///") + ".sessions-lock")
        await asyncio.to_thread(file.unlink, missing_ok=True)
        return
    await postgres_server.drop_locks(url)


class Worker:
    """A worker's process.

    Args:
        process: The process, or the program that waits for one that was forked.
        pid: The id of the worker's process.
    """

    def __init__(self, process: asyncio.subprocess.Process, pid: int) -> None:
        self.process = process
        self._pid = pid
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    def order(self, do: str, session: str, text: str = "") -> asyncio.Future[dict[str, Any]]:
        """Send an order; the future returns the reply, an `error` if the worker ends without one."""
        assert self.process.stdin is not None
        id_ = next(self._ids)
        reply = self._waiting[id_] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(json.dumps({"id": id_, "do": do, "session": session, "text": text}).encode() + b"\n")
        return reply

    async def do(self, do: str, session: str, text: str = "") -> dict[str, Any]:
        """Behaves like `order`, and waits for the reply."""
        async with asyncio.timeout(_WITHIN_S):
            return await self.order(do, session, text)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            reply = json.loads(line)
            self._settle(self._waiting.pop(reply["id"]), reply)
        for lost in self._waiting.values():
            self._settle(lost, {"error": "WorkerEnded"})

    @staticmethod
    def _settle(waiting: asyncio.Future[dict[str, Any]], reply: dict[str, Any]) -> None:
        if not waiting.done():
            waiting.set_result(reply)


class Attack:
    """One attack: its workers, its sessions, and the record of its turns.

    Args:
        name: Its name, for the summary.
        url: The database.
        folder: Where the effects are kept.
        overlap: Fields of `LoopConfig` of the workers' agent, by which its plans overlap their execution; None for the
            usual agent.
    """

    def __init__(self, name: str, url: str, folder: Path, overlap: dict[str, Any] | None = None) -> None:
        self.random = random.Random(f"{SEED} {name}")
        self.record = Record()
        self.figures: Counter[str] = Counter()
        self._name = name
        self._url = url
        self._overlap = {} if overlap is None else {"TEST_ATTACK_OVERLAP": json.dumps(overlap)}
        self._effects = folder / "effects"
        self._errors = folder / "errors"
        self._numbers = itertools.count(1)
        self._turns: list[Turn] = []
        self._noted = asyncio.Condition()

    def count(self, what: str, by: int = 1) -> None:
        """Count something for the summary."""
        self.figures[what] += by

    async def noted(self, turns: int) -> None:
        """Return when so many turns have ended."""
        async with asyncio.timeout(_WITHIN_S), self._noted:
            await self._noted.wait_for(lambda: self.figures["turns"] >= turns)

    @asynccontextmanager
    async def worker(self, clock_s: float = 0.0) -> AsyncIterator[Worker]:
        """Start a worker, and end it on leaving.

        Args:
            clock_s: What its wall clock is ahead; negative where it is behind.
        """
        # A forked process has the newest checkpoint id of the process from which it was forked, so its ids would not
        # follow a clock that is behind.
        program = sys.executable if clock_s else warm_python()
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "TEST_ATTACK_CLOCK_S": str(clock_s), **self._overlap}
        with self._errors.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(program, "-m", "tests.attack.worker", self._url, str(self._effects)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=_ROOT,
            )
        worker = None
        try:
            assert process.stdout is not None
            async with asyncio.timeout(_WITHIN_S):
                ready, _, pid = (await process.stdout.readline()).partition(b" ")
            assert ready == b"ready", self._errors.read_text()
            worker = Worker(process, int(pid))
            yield worker
        finally:
            if worker is not None:
                worker.send_signal(signal.SIGKILL)
            elif process.returncode is None:
                process.kill()
            await process.wait()

    def text(self, session: str, *kinds: str) -> str:
        """The text of a new turn, of one of these kinds; no other turn has it."""
        text = f"{self.random.choice(kinds)} {next(self._numbers)}"
        self._turns.append((session, text))
        return text

    async def turn(self, worker: Worker, session: str, *kinds: str) -> dict[str, Any]:
        """Take one turn of a session, a person's answer included, and record its end."""
        text = self.text(session, *(kinds or ("pay",)))
        return await self.note(session, text, await self.answered(worker, session, worker.order("run", session, text)))

    async def answered(self, worker: Worker, session: str, turn: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        """The reply to a turn; where it waits for a person, the reply to their answer."""
        async with asyncio.timeout(_WITHIN_S):
            reply = await turn
        return await worker.do("resume", session, "yes") if "waits" in reply else reply

    @asynccontextmanager
    async def paused(self, worker: Worker, turn: asyncio.Future[dict[str, Any]]) -> AsyncIterator[None]:
        """While within, a worker is paused, from a random moment of its turn on."""
        # Its model and its tools take about as long.
        await asyncio.wait([turn], timeout=self.random.random() * 0.15)
        self.count("stops", 0 if turn.done() else 1)
        worker.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            worker.send_signal(signal.SIGCONT)

    async def end(self, worker: Worker) -> None:
        """Kill a worker, unless it has been killed, and wait for its end."""
        worker.send_signal(signal.SIGKILL)
        await worker.process.wait()
        self.count("kills")

    async def note(self, session: str, text: str, reply: dict[str, Any]) -> dict[str, Any]:
        """Record the reply to a turn."""
        self.record.note(session, text, reply)
        async with self._noted:
            self.count("turns")
            self._noted.notify_all()
        return reply

    async def found(self) -> list[Violation]:
        """All violations; the figures are added to the report."""
        histories: dict[str, Any] = {}
        async with graph_over(self._url, Effects(self._effects)) as graph:
            for session in sorted({session for session, _ in self._turns}):
                state = await graph.aget_state({"configurable": {"thread_id": session}})
                histories[session] = state.values.get("messages", [])
        effects = Effects(self._effects).read()
        found = violations(self.record, effects, histories, self._turns)
        self.count("acknowledged", len(self.record.answers))
        self.count("effects", effects.total())
        ROWS.append(Row(self._name, self.figures, found, [*in_words(self.record.errors)]))
        return found
