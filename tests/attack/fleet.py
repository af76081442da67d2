"""The workers of an attack, and what it comes to."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.agents import dialogue
from tests.attack.oracle import Effects, Record, violations
from tests.attack.worker import graph_over

SCALE = int(os.environ.get("GRAPH_AGENT_ATTACK_SCALE", "1"))
"""How many times as long as in continuous integration an attack lasts."""
_WITHIN_S = 120
_ROOT = Path(__file__).parents[2]


class Worker:
    """A worker's process.

    Args:
        process: The process.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    def order(self, do: str, session: str, text: str = "") -> asyncio.Future[dict[str, Any]]:
        """Have something done; the future gives the reply, an `error` when the worker ends without one."""
        assert self.process.stdin is not None
        id_ = next(self._ids)
        reply = self._waiting[id_] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(json.dumps({"id": id_, "do": do, "session": session, "text": text}).encode() + b"\n")
        return reply

    async def do(self, do: str, session: str, text: str = "") -> dict[str, Any]:
        """As `order`, and wait for the reply."""
        async with asyncio.timeout(_WITHIN_S):
            return await self.order(do, session, text)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

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
        seed: Makes its choices the same ones each time.
    """

    def __init__(self, name: str, url: str, folder: Path, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.record = Record()
        self.figures: dict[str, int] = {}
        self._name = name
        self._url = url
        self._effects = folder / "effects"
        self._errors = folder / "errors"
        self._turns = itertools.count(1)
        self._sessions: set[str] = set()

    def count(self, what: str, by: int = 1) -> None:
        """Count something for the summary."""
        self.figures[what] = self.figures.get(what, 0) + by

    @asynccontextmanager
    async def worker(self, clock_s: float = 0.0) -> AsyncIterator[Worker]:
        """Start a worker, and end it on leaving.

        Args:
            clock_s: What its wall clock is ahead; negative where it is behind.
        """
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "GRAPH_AGENT_ATTACK_CLOCK_S": str(clock_s)}
        with self._errors.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.attack.worker", self._url, str(self._effects)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=_ROOT,
            )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(_WITHIN_S):
                ready = await process.stdout.readline()
            assert ready == b"ready\n", self._errors.read_text()
            yield Worker(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def words(self, kind: str) -> str:
        """Words that no other turn has."""
        return f"{kind} {next(self._turns)}"

    async def turn(self, worker: Worker, session: str, kind: str = "pay") -> dict[str, Any]:
        """Take one turn of a session, a person's answer included, and note what came of it."""
        self._sessions.add(session)
        text = self.words(kind)
        reply = await worker.do("run", session, text)
        if "waits" in reply:
            reply = await worker.do("resume", session)
        self.note(session, text, reply)
        return reply

    def note(self, session: str, text: str, reply: dict[str, Any]) -> None:
        """Note what came of a turn."""
        self._sessions.add(session)
        self.count("turns")
        self.record.note(session, text, reply)

    async def found(self) -> list[str]:
        """What contradicts the effects, with the summary printed."""
        histories: dict[str, list[tuple[str, str]]] = {}
        async with graph_over(self._url, Effects(self._effects)) as graph:
            for session in sorted(self._sessions):
                state = await graph.aget_state({"configurable": {"thread_id": session}})
                histories[session] = dialogue(state.values.get("messages", []))
        effects = Effects(self._effects).read()
        found = violations(self.record, effects, histories)
        self._summarize(effects.total(), found)
        return found

    def _summarize(self, effects: int, found: list[str]) -> None:
        figures: Mapping[str, int] = {
            **self.figures,
            "acknowledged": len(self.record.answers),
            **self.record.errors,
            "effects": effects,
            "violations": len(found),
        }
        told = ", ".join(f"{count} {what}" for what, count in figures.items())
        sys.stdout.write(f"\nattack {self._name}: {told}\n")
