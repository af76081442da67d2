"""A database with 100,000 sessions, compared with one of 1,000: `python -m benchmarks.many_sessions`.

One session of three inputs is stored, pruned, and copied within the database under other ids. A server of each database
is asked for a page, for one session and for its metrics; one session is continued, and the database is pruned.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from benchmarks import harness
from benchmarks.harness import RATIO_COLUMNS, Cost, Costs, Scale, Table, ratio_row
from benchmarks.serve import AGENT, Server, started
from benchmarks.work import REPLY
from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver, prune
from tests.support.postgres_server import postgres_server

SIZES = (1_000, 100_000)
"""Numbers of sessions that are compared."""
_REQUESTS = 20
"""Requests of one measurement."""
_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "writes")
_SERVED = {
    "a page of 50 sessions": "/memory/summaries?limit=50",
    "a page in the middle": "/memory/summaries?limit=50&after=s{middle}",
    "one session": "/sessions/s{middle}",
    "`/metrics`": "/metrics",
}
_AIM = "≤ 1.20"

Measure = Callable[[], Awaitable[Cost]]


@dataclass(frozen=True)
class Database:
    """A database under test."""

    url: str
    sessions: int
    server: Server


async def _run(url: str, session: str, inputs: int) -> None:
    async with open_saver(url) as saver:
        agent = create_graph_agent(ScriptedChatModel([REPLY], cycle=True), checkpointer=saver)
        for number in range(inputs):
            result = await Session(agent, session).run(f"Question {number}: what is the value?")
            assert result.status == "COMPLETED", result


async def store(url: str, sessions: int) -> None:
    """Store sessions `s0`, `s1`, … that are pruned, in a new database."""
    await _run(url, "s0", 3)
    await prune(url, keep_last=1)
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db, db:
            for table in _TABLES:
                if columns := [
                    name for _, name, *_ in db.execute(f"PRAGMA table_info({table})") if name != "thread_id"
                ]:
                    listed = ", ".join(f'"{name}"' for name in columns)
                    db.execute(
                        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :sessions) "
                        f"INSERT INTO {table} (thread_id, {listed}) SELECT 's' || i, {listed} FROM n, {table} "
                        "WHERE thread_id = 's0' AND i < :sessions",
                        {"sessions": sessions},
                    )
        return
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_name = ANY(%s)"
            " AND column_name <> 'thread_id' AND is_generated = 'NEVER'",
            [list(_TABLES)],
        ).fetchall()
        for table in sorted({table for table, _ in found}):
            names = sql.SQL(", ").join(sql.Identifier(name) for of, name in found if of == table)
            connection.execute(
                sql.SQL(
                    "INSERT INTO {0} (thread_id, {1}) SELECT 's' || i, {1} FROM {0}, generate_series(1, {2}) i"
                    " WHERE thread_id = 's0'"
                ).format(sql.Identifier(table), names, sql.Literal(sessions - 1))
            )
        connection.execute("VACUUM ANALYZE")


async def _ask(database: Database, path: str) -> Cost:
    url = f"http://127.0.0.1:{database.server.port}{path.format(middle=database.sessions // 2)}"
    cpu, wall = database.server.cpu_s(), time.perf_counter()
    await asyncio.to_thread(_get, url)
    return Cost(database.server.cpu_s() - cpu, time.perf_counter() - wall)


def _get(url: str) -> None:
    for _ in range(_REQUESTS):
        with urllib.request.urlopen(url, timeout=60) as response:
            response.read()


async def _prune(database: Database) -> Cost:
    await _run(database.url, f"s{database.sessions // 2}", 1)
    cpu, wall = time.process_time(), time.perf_counter()
    report = await prune(database.url, keep_last=1)
    cost = Cost(time.process_time() - cpu, time.perf_counter() - wall)
    if len(report.sessions) != 1 or not report.checkpoints:
        raise RuntimeError(f"One session was continued, and pruning found {len(report.sessions)}.")
    return cost


async def _start(database: Database) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        wall = time.perf_counter()
        with _served(database.url, Path(folder)) as server:
            return Cost(server.cpu_s(), time.perf_counter() - wall)


@contextmanager
def _served(url: str, folder: Path) -> Iterator[Server]:
    (folder / "agent.yaml").write_text(AGENT)
    command = ["graph_agent.interfaces.cli.app", "serve", "--config", str(folder / "agent.yaml"), "--db", url]
    with started("serve", command, folder) as server:
        yield server


async def _rounds(measures: Mapping[str, Measure], scale: Scale) -> Costs:
    costs: dict[str, list[Cost]] = {name: [] for name in measures}
    for measure in measures.values():
        await measure()
    since, rounds = time.monotonic(), 0
    while scale.more(rounds, since):
        for name, measure in measures.items():
            costs[name].append(await measure())
        rounds += 1
    return costs


async def _rows(kind: str, databases: Mapping[str, Database], scale: Scale) -> list[list[str]]:
    works: dict[str, tuple[Callable[[Database], Awaitable[Cost]], int, str]] = {
        **{name: (functools.partial(_ask, path=path), _REQUESTS, "request") for name, path in _SERVED.items()},
        "start of `serve`": (_start, 1, "start"),
        "a pruning after one session changed": (_prune, 1, "pruning"),
    }
    few, many = databases
    rows: list[list[str]] = []
    for name, (measure, per, unit) in works.items():
        costs = await _rounds({size: functools.partial(measure, each) for size, each in databases.items()}, scale)
        row = ratio_row(f"{kind}, {name}", costs, many, few, aim=_AIM, per=per, unit=unit)
        wall = statistics.median(cost.wall for cost in costs[many]) / per
        rows.append([*row, f"{harness.milliseconds(wall)}"])
    return rows


async def tables(scale: Scale) -> list[Table]:
    """Compare both sizes in SQLite, and in PostgreSQL where it is installed."""
    rows: list[list[str]] = []
    for kind in ("SQLite", "PostgreSQL"):
        with ExitStack() as stack:
            server = stack.enter_context(postgres_server()) if kind == "PostgreSQL" else None
            databases: dict[str, Database] = {}
            for size in SIZES:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                url = stack.enter_context(server.database()) if server else f"sqlite:///{folder}/many.db"
                sessions = scale.size(size)
                await store(url, sessions)
                databases[str(size)] = Database(url, sessions, stack.enter_context(_served(url, folder)))
            rows += await _rows(kind, databases, scale)
    note = (
        f"{SIZES[1]:,} sessions in one database; ratios to {SIZES[0]:,}. CPU time is that of the server, or of the "
        "process that prunes; PostgreSQL's own is in the wall time only."
    )
    return [Table("Many sessions", note, [*RATIO_COLUMNS, "wall"], rows)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
