"""Readiness probes: their result and their duration."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.interfaces.server import readiness
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.host import Host, open_host
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.interfaces.server.readiness import ReadinessCheck
from graph_agent.server import AgentSource, ServerSettings
from tests.interfaces.server.hosting import running
from tests.interfaces.server.process import PARROT, serving
from tests.support.gates import Gate
from tests.support.postgres_server import PostgresServer, on_postgres
from tests.support.small_disk import fill, small_disk

AGENT = {"name": "real", "model": "openai:gpt-4o-mini"}


@contextmanager
def provider(status: int, requests: list[str], completions: int = 500, page: str = "") -> Iterator[str]:
    """A provider that answers its list of models with one status, and completion requests with another.

    With `page`, the list or everything is a web page.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            body = b'{"object": "list", "data": []}' if status == 200 else b'{"error": {"message": "no"}}'
            body = b"<html></html>" if page else body
            self.send_response(status)
            kind = "text/html" if page else "application/json"
            for name, value in (("content-type", kind), ("content-length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            requests.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers["content-length"] or 0))
            self.send_response(completions)
            self.send_header("content-type", "text/html" if page == "everything" else "application/json")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def probed(folder: Path, base_url: str) -> list[tuple[int, str]]:
    environment = {"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": base_url}
    with serving(folder, agent=AGENT, environment=environment, up="/health") as server, server.http() as http:
        answers = [http.get("/ready") for _ in range(3)]
    return [(answer.status_code, answer.json()["checks"]["model"]) for answer in answers]


@pytest.mark.parametrize(
    ("status", "completions", "page", "expected"),
    [(200, 400, "list", (200, "ok")), (200, 200, "everything", (503, "unreachable"))],
)
def test_a_web_page_is_no_list_of_models(
    tmp_path: Path, status: int, completions: int, page: str, expected: tuple[int, str]
) -> None:
    asked: list[str] = []
    with provider(status, asked, completions, page) as base_url:
        answers = probed(tmp_path, base_url)

    assert (answers, asked) == ([expected] * 3, ["GET /v1/models", "POST /v1/chat/completions"])


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("status", "completions", "expected"),
    [
        (200, None, (200, "ok")),
        (404, 400, (200, "ok")),
        (404, 404, (503, "unreachable")),
        (405, 400, (200, "ok")),
        (401, None, (503, "auth")),
        (403, None, (503, "permission")),
        (500, 500, (503, "unreachable")),
        (500, 404, (503, "unreachable")),
        (500, 401, (503, "auth")),
        (500, 400, (200, "ok")),
    ],
)
def test_the_models_endpoint_is_asked_once_for_many_probes(
    tmp_path: Path, status: int, completions: int | None, expected: tuple[int, str]
) -> None:
    asked: list[str] = []
    with provider(status, asked, completions or 500) as base_url:
        answers = probed(tmp_path, base_url)

    tried = ["POST /v1/chat/completions"] if completions is not None else []
    assert (answers, asked) == ([expected] * 3, ["GET /v1/models", *tried])


def test_an_endpoint_that_is_not_there_is_no_model(tmp_path: Path) -> None:
    with provider(200, []) as gone:
        pass

    assert probed(tmp_path, gone) == [(503, "unreachable")] * 3


async def test_a_part_that_does_not_answer_is_asked_once_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CHECK_S", 0.01)
    gate = Gate()
    looks: list[str] = []
    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel(["one"]))) as runs:

        async def stuck(config: Any) -> None:
            looks.append("database")
            await gate.passing()

        monkeypatch.setattr(runs.host.saver, "aget_tuple", stuck)
        ready = ReadinessCheck(runs.host, runs.metrics, runs)
        checks = [await ready.checks() for _ in range(3)]
        looked = list(looks)
        gate.open()
        while (last := await ready.checks())["database"] == "timeout":
            await asyncio.sleep(0)

    late = {"server": "ok", "model": "ok", "database": "timeout"}
    assert (checks, looked, last) == ([late] * 3, ["database"], {**late, "database": "ok"})


async def test_a_part_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(config: Any) -> None:
        raise OSError("no disk sk-secretsecretsecret")

    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel(["one"]))) as runs:
        monkeypatch.setattr(runs.host.saver, "aget_tuple", broken)
        checks = await ReadinessCheck(runs.host, runs.metrics, runs).checks()

    assert checks == {"server": "ok", "model": "ok", "database": "failed"}


@asynccontextmanager
async def ready_on(address: str) -> AsyncIterator[tuple[ReadinessCheck, Host]]:
    """The readiness of a server whose sessions are in a database; each call of `checks` looks anew."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield create_graph_agent(ScriptedChatModel(["one"]))

    source = AgentSource("scripted", "", address, opened)
    async with (
        asyncio.timeout(60),
        open_host(source, ServerSettings()) as host,
        aclosing(Runs(host, Metrics())) as runs,
    ):
        yield ReadinessCheck(runs.host, runs.metrics, runs), host


def damage_pages(file: Path) -> None:
    """Overwrite all pages but the first."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with file.open("r+b") as pages:
        pages.seek(4096)
        pages.write(b"\xa5" * (file.stat().st_size - 4096))


def damage_header(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with file.open("r+b") as pages:
        pages.write(b"no database at all" * 9)


def empty(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(file, 0)


@pytest.mark.parametrize(
    "damage", [damage_pages, damage_header, empty, Path.unlink], ids=lambda damage: damage.__name__
)
async def test_a_server_whose_database_is_damaged_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(readiness, "CACHE_S", 0.0)
    file = tmp_path / "s.db"
    async with ready_on(f"sqlite:///{file}") as (ready, _):
        before = (await ready.checks())["database"]
        damage(file)
        after = [await ready.checks() for _ in range(3)]

    logged = [record for record in caplog.records if "The check of /ready of the database failed" in record.message]
    assert (before, [states["database"] for states in after], len(logged)) == ("ok", ["failed"] * 3, 1)
    assert str(tmp_path) not in str(after)


async def test_a_server_whose_disk_is_full_is_not_ready_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "CACHE_S", 0.0)
    with small_disk(tmp_path / "disk", 1024) as disk:
        async with ready_on(f"sqlite:///{disk / 's.db'}") as (ready, host):
            before = (await ready.checks())["database"]
            filler = fill(disk)
            # Space left by a failed write is not enough for another.
            with pytest.raises(sqlite3.OperationalError):
                await host.store.aput(("a",), "key", {"text": "x" * 500_000})
            full = (await ready.checks())["database"]
            filler.unlink()
            after = (await ready.checks())["database"]

    assert (before, full, after) == ("ok", "full", "ok")


@pytest.mark.parametrize("part", ["saver", "store"])
async def test_a_database_that_may_not_grow_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(readiness, "CACHE_S", 0.0)
    async with ready_on(f"sqlite:///{tmp_path / 's.db'}") as (ready, host):
        before = (await ready.checks())["database"]
        connection: Any = getattr(host, part).conn
        pages = 0
        for pragma in ("page_count", "max_page_count={}"):
            rows = connection.execute(f"PRAGMA {pragma.format(pages)}")
            [[pages]] = await (await rows).fetchall() if part == "store" else rows.fetchall()
        full = (await ready.checks())["database"]

    assert (before, full) == ("ok", "full")


async def test_a_probe_leaves_nothing_behind_and_takes_a_foreign_transaction_for_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "CACHE_S", 0.0)
    file = tmp_path / "s.db"
    async with ready_on(f"sqlite:///{file}") as (ready, host):
        first = (await ready.checks())["database"]
        with closing(sqlite3.connect(file)) as other:
            tables = [name for (name,) in other.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            rows = {name: other.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
            other.execute("BEGIN IMMEDIATE")
            locked = (await ready.checks())["database"]
        sessions = [found async for found in host.saver.alist(None)]

    kept = {name: count for name, count in rows.items() if count and not name.endswith("_migrations")}
    assert (first, locked, kept, sessions) == ("ok", "ok", {}, [])


@on_postgres
@pytest.mark.parametrize("table", ["checkpoint_writes", "store"])
async def test_a_postgresql_database_whose_disk_is_full_is_not_ready(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(readiness, "CACHE_S", 0.0)
    # Where the server's own user can get in.
    with postgres.database() as url, small_disk(postgres.folder / f"small-{table}", 2048) as disk:
        shutil.chown(disk, postgres.folder.owner())
        async with ready_on(url) as (ready, host):
            before = (await ready.checks())["database"]
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}'".encode())
                connection.execute(f"ALTER TABLE {table} SET TABLESPACE small".encode())
                filler = fill(disk)
                full = (await ready.checks())["database"]
                filler.unlink()
                after = (await ready.checks())["database"]
                kept = [found async for found in host.saver.alist(None)] + list(await host.store.asearch(()))
                connection.execute(f"ALTER TABLE {table} SET TABLESPACE pg_default".encode())
                connection.execute("DROP TABLESPACE small")

    assert (before, full, after, kept) == ("ok", "full", "ok", [])


DOWN = {
    **PARROT,
    "mcp_servers": {
        "down": {"transport": "stdio", "command": "python", "args": ["down.py"], "connect_timeout_s": 10},
        "up": {"transport": "stdio", "command": "python", "args": ["-m", "tests.support.mcp_servers.demo_server"]},
    },
}
STARTS = "import pathlib\nwith pathlib.Path(__file__).with_name('starts').open('a') as starts:\n    starts.write('x')\n"


def test_concurrent_probes_restart_a_dead_server_once(tmp_path: Path) -> None:
    (tmp_path / "down.py").write_text(STARTS)
    with serving(tmp_path, agent=DOWN, up="/health") as server, server.http() as http:
        at_start = (tmp_path / "starts").stat().st_size
        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(lambda _: http.get("/ready"), range(50)))
        started = (tmp_path / "starts").stat().st_size - at_start

    found = {(answer.status_code, answer.json()["checks"]["mcp:down"]) for answer in answers}
    # On a slow machine they may take longer than the result counts.
    assert (found, 1 <= started <= 5) == ({(503, "down")}, True)


async def test_the_state_of_mcp_servers_and_the_database_is_looked_for_again_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The event loop reads this clock too, so it must not leap past the deadlines that are set.
    clock = [begun := time.monotonic()]
    looks: list[str] = []
    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel(["one"]))) as runs:

        async def look(name: str) -> Any:
            looks.append(name)
            return {} if name == "mcp" else None

        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(type(runs.host), "mcp_states", lambda host: look("mcp"))
        monkeypatch.setattr(runs.host.saver, "aget_tuple", lambda config: look("database"))
        ready = ReadinessCheck(runs.host, runs.metrics, runs)
        found = []
        for clock[0] in (begun, begun + 4.9, begun + 5.1):
            await asyncio.gather(*(ready.checks() for _ in range(20)))
            found.append(sorted(looks))

    assert found == [["database", "mcp"]] * 2 + [["database", "database", "mcp", "mcp"]]
