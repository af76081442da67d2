"""Throughput and recovery of worker processes on one PostgreSQL database: `python -m benchmarks.postgres`.

Each of 1, 2 or 4 processes runs 8 sessions of 10 turns at the same time; the variants are interleaved in each round.
The database is a server of its own with PostgreSQL's default durability, reached through a Unix socket, unless `--url`
names one. Recovery is the time from the fault of a process until another one has resumed its session and answered.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import harness
from benchmarks.harness import Cost, Scale, Table, Work, cpu_ratio, plain, quartiles, wall_ratio
from benchmarks.postgres_worker import CREATE_AGENT, VARIANTS
from graph_agent.core.state.postgres_locks import LEASE_S
from tests.support.postgres_server import binaries, postgres_server

_WORKERS = (1, 2, 4)
_SESSIONS, _TURNS = 8, 10
_KILLS, _PAUSES = 10, 2
_CHECKPOINTS = "SELECT count(*) FROM checkpoints"


class Worker:
    """A worker process.

    Args:
        process: The process.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def order(self, **order: Any) -> float:
        """Send an order, wait until it is carried out, and return the CPU time it took, in seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self.done()

    async def done(self) -> float:
        """Wait for a reply, and return the CPU time it contains.

        Raises:
            RuntimeError: If the worker ended.
        """
        assert self.process.stdout is not None
        if not (reply := await self.process.stdout.readline()):
            raise RuntimeError(f"A worker ended with status {await self.process.wait()}.")
        return float(json.loads(reply)["cpu"])


@asynccontextmanager
async def _worker(url: str, lease_s: int = LEASE_S) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.postgres_worker", url, str(lease_s)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    try:
        worker = Worker(process)
        await worker.done()
        yield worker
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextmanager
def _database(scale: Scale) -> Iterator[str]:
    """The address of the database."""
    if scale.url:
        yield scale.url
        return
    with postgres_server(fsync="on") as server:
        yield server.url("postgres")


async def throughput(scale: Scale, url: str) -> Table:
    """Compare the savers with 1, 2 and 4 workers."""
    rows: list[list[str]] = []
    turns = scale.size(_TURNS)
    async with AsyncExitStack() as stack:
        most = 1 if scale.tiny else max(_WORKERS)
        workers = await asyncio.gather(*(stack.enter_async_context(_worker(url)) for _ in range(most)))
        for count in _WORKERS:
            busy = workers[:count]
            sessions = len(busy) * scale.size(_SESSIONS)
            cpu_s: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
            works = {variant: _run(busy, variant, turns, scale, cpu_s[variant]) for variant in VARIANTS}
            stored = {variant: await _count(url, work) for variant, work in works.items()}
            trials = {variant: plain(lambda work=work: work) for variant, work in works.items()}  # type: ignore[misc]
            costs = {
                # The last trials are the measured ones.
                variant: [
                    Cost(cpu, cost.wall) for cpu, cost in zip(cpu_s[variant][-len(measured) :], measured, strict=True)
                ]
                for variant, measured in (await harness.interleaved(trials, scale)).items()
            }
            for variant in VARIANTS:
                seconds = statistics.median(cost.wall for cost in costs[variant])
                cpu, wall = (ratio(costs, variant, CREATE_AGENT) for ratio in (cpu_ratio, wall_ratio))
                rows.append(
                    [
                        f"{count} worker{'s' if count > 1 else ''}, {variant}",
                        f"{stored[variant] / seconds:.0f}",
                        f"{sessions * turns / seconds:.0f}",
                        f"{cpu.median:.2f}",
                        f"{wall.median:.2f}",
                        quartiles(wall),
                    ]
                )
    note = (
        f"Each worker runs {_SESSIONS} sessions of {_TURNS} turns at the same time; ratios of the workers' CPU time, "
        "and of wall time, to `create_agent` with as many workers. Clients, workers and database share the machine."
    )
    columns = ["work", "checkpoints/s", "turns/s", "CPU ratio", "wall ratio", "quartiles"]
    return Table("PostgreSQL: throughput", note, columns, rows)


def _run(workers: list[Worker], variant: str, turns: int, scale: Scale, cpu_s: list[float]) -> Work:
    """Return a trial that appends the workers' CPU time to `cpu_s`."""
    order = {"do": "run", "variant": variant, "turns": turns, "sessions": scale.size(_SESSIONS)}

    async def work() -> None:
        cpu_s.append(sum(await asyncio.gather(*(worker.order(**order) for worker in workers))))

    return work


async def _count(url: str, work: Work) -> int:
    """Run a trial once, and return the number of checkpoints that it stored."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def stored() -> int:
            row = await (await connection.execute(_CHECKPOINTS)).fetchone()
            assert row is not None
            return int(row[0])

        before = await stored()
        await work()
        return await stored() - before


async def recovery(scale: Scale, url: str) -> Table:
    """Measure how long a session is without a process after a fault."""
    lease_s = 1 if scale.tiny else LEASE_S
    rows: list[list[str]] = []
    async with _worker(url) as other:
        for name, times, fault in (("killed", _KILLS, signal.SIGKILL), ("paused", _PAUSES, signal.SIGSTOP)):
            taken_s = [await _recover(url, other, fault, lease_s) for _ in range(1 if scale.tiny else times)]
            median, most = statistics.median(taken_s), max(taken_s)
            rows.append([f"a {name} process", str(len(taken_s)), f"{median:.3f} s", f"{most:.3f} s"])
    note = (
        "From SIGKILL or SIGSTOP of a process in the middle of a tool until another one, which tries every 20 ms, has "
        f"resumed the session and answered. The locks of a paused process expire after {LEASE_S} s."
    )
    return Table("PostgreSQL: recovery", note, ["fault", "times", "median", "most"], rows)


async def _recover(url: str, other: Worker, fault: signal.Signals, lease_s: int) -> float:
    session = uuid.uuid4().hex
    async with _worker(url, lease_s) as victim:
        await victim.order(do="hold", session=session)
        since = time.perf_counter()
        victim.process.send_signal(fault)
        await other.order(do="resume", session=session)
        return time.perf_counter() - since


async def tables(scale: Scale) -> list[Table]:
    """Measure everything."""
    if not scale.url and binaries() is None:
        return [Table("PostgreSQL", "Not measured: PostgreSQL is not installed on this machine.", [], [])]
    with _database(scale) as url:
        return [await throughput(scale, url), await recovery(scale, url)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
