"""A real PostgreSQL server in a temporary folder, reached through a Unix socket."""

from __future__ import annotations

import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from psycopg import sql

from tests.support.memory_folder import memory_folder

_UP_WITHIN_S = 180
_USER = "postgres"

on_postgres = pytest.mark.xdist_group("postgres")
"""Keeps the tests that need the server on one worker, so that there is one server."""


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs, the newest where there are several; None where it is not installed."""
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]), reverse=True)
    if found := shutil.which("initdb"):
        folders.append(str(Path(found).resolve().parent))
    return next((Path(folder) for folder in folders if Path(folder, "postgres").exists()), None)


@dataclass
class PostgresServer:
    """A server under test."""

    folder: Path
    process: subprocess.Popen[bytes]
    begin: Callable[[], subprocess.Popen[bytes]]
    """Restarts its process."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _empty: list[str] = field(default_factory=list)
    """Names of the databases that no test uses."""

    def url(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://{_USER}@/{database}?host={self.folder}"

    def stop(self) -> None:
        """Stop it at once, and disconnect all clients."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(120)

    def start(self) -> None:
        """Start it again, and wait until it takes connections."""
        self.process = self.begin()
        _wait_until_up(self)

    @contextmanager
    def database(self, like: str = "") -> Iterator[str]:
        """A database of its own for one test; yield its address.

        Args:
            like: The address of a database to copy, whose clients are disconnected. Without it the database is empty.
        """
        if like:
            name = self._create(like.partition("@/")[2].partition("?")[0])
        else:
            name = self._empty.pop() if self._empty else self._create("template1")
        yield self.url(name)
        # PostgreSQL takes a tenth of a second to make a database, and a tenth of that to empty one.
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            _disconnect(connection, name)
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
            connection.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(name)))
        self._empty.append(name)

    def _create(self, template: str) -> str:
        """Create a database; return its name."""
        name = f"test_{next(self._numbers)}"
        names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            _disconnect(connection, template)
            connection.execute(sql.SQL("CREATE DATABASE {name} TEMPLATE {template}").format(**names))
        return name


def _disconnect(connection: psycopg.Connection[Any], database: str) -> None:
    """End the other connections to a database."""
    connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
        [database],
    )


@contextmanager
def postgres_server(*, fsync: str = "off", programs: Path | None = None) -> Iterator[PostgresServer]:
    """Run a server for the context, as another user if this process is root, which PostgreSQL refuses.

    Args:
        fsync: PostgreSQL's setting; `off` is fast, and loses data only when the machine stops.
        programs: The folder of PostgreSQL's programs; None for the installed ones.
    """
    bin_ = programs or binaries()
    assert bin_ is not None
    # Short, as a socket's path may have 107 bytes only; and where the other user can get in.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp" if fsync == "on" else memory_folder() or "/tmp"))
    user = _unprivileged()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    as_user: dict[str, Any] = (
        {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user is not None else {}
    )
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(folder)}
    data = folder / "data"
    try:
        subprocess.run(
            [bin_ / "initdb", "-D", data, "-U", _USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            **as_user,
        )
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": fsync,
            "max_connections": "200",
            "shared_buffers": "32MB",
            # No test stops the machine, or uses a table for long.
            "full_page_writes": fsync,
            "autovacuum": fsync,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

        def begin() -> subprocess.Popen[bytes]:
            with (folder / "log").open("ab") as log:
                process: Any = subprocess.Popen(
                    [bin_ / "postgres", "-D", data, *options],
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env=environment,
                    **as_user,
                )
            return cast("subprocess.Popen[bytes]", process)

        server = PostgresServer(folder, begin(), begin)
        try:
            _wait_until_up(server)
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def drop_locks(url: str) -> None:
    """Let the server end the connections that hold the locks of sessions."""
    query = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'graph-agent locks' AND datname = current_database()"
    )
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(query)


def _unprivileged() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _wait_until_up(server: PostgresServer) -> None:
    deadline = time.monotonic() + _UP_WITHIN_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            psycopg.connect(server.url("postgres")).close()
        except psycopg.OperationalError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"PostgreSQL did not come up:\n{(server.folder / 'log').read_text()[-4000:]}")
