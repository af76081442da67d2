"""A real server process on a loopback port that was free when it bound to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.support.warm_process import Process, start_python

ROOT = Path(__file__).parents[3]
UP_WITHIN_S = 180
PARROT = {
    "name": "parrot",
    "description": "Says it again.",
    "model": "tests.interfaces.server.parrot:make",
    "tools": ["tests.interfaces.server.parrot:look_up", "tests.interfaces.server.parrot:wait_for"],
    "config": {"model_retries": 0},
}
COMPOSING_PARROT = {**PARROT, "config": {"model_retries": 0, "finalize": "compose"}}
"""The parrot, with every answer composed by a second request."""


@dataclass
class Served:
    """A server under test."""

    url: str
    process: Process
    log: Path

    def http(self, **options: Any) -> httpx.Client:
        """A client of it."""
        return httpx.Client(base_url=self.url, trust_env=False, verify=False, timeout=60, **options)

    def term(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def kill_all(self) -> None:
        """Kill it and its worker processes, and wait for their end."""
        processes = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for process in processes:
            process.kill()
        eventually(lambda: all(map(_has_ended, processes)))


@contextmanager
def serving(
    folder: Path,
    *options: str,
    agent: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    up: str = "/ready",
) -> Iterator[Served]:
    """Serve an agent with `graph-agent serve`; its database is `sessions.db` in the folder."""
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump(agent or PARROT))
    command = ["graph_agent.cli", "serve", "--config", str(file), "--port", "0"]
    database = [] if "--db" in options else ["--db", f"sqlite:///{folder / 'sessions.db'}"]
    with running(folder, *command, *database, *options, environment=environment) as served:
        wait_until_up(served, up)
        yield served


@contextmanager
def running(
    folder: Path,
    *command: str,
    environment: dict[str, str] | None = None,
    python: Path | None = None,
    listens: str = "Uvicorn running on",
) -> Iterator[Served]:
    """Run a program of Python in a folder until it prints its address; kill it at the end.

    Args:
        folder: Its working folder, where its output is appended to `log`.
        command: A module or a file, and its arguments.
        environment: Additional variables.
        python: The interpreter of another environment, for which a module's name follows `-m`; None for this one.
        listens: What it prints before its address.
    """
    log = folder / "log"
    with log.open("ab") as out:
        begins = out.tell()
        options: dict[str, Any] = {
            "cwd": folder,
            "env": _environment(folder, environment or {}),
            "stdin": subprocess.DEVNULL,
            "stdout": out.fileno(),
            "stderr": out.fileno(),
        }
        start = start_python if python is None else subprocess.Popen
        process = start([*([str(python)] if python else []), *command], **options)
    served = Served("", process, log)
    try:
        served.url = _address(served, begins, listens)
        yield served
    finally:
        process.kill()
        process.wait()


def refused(folder: Path, options: Sequence[str], *, agent: dict[str, Any] | None = None) -> tuple[int, str]:
    """The exit status and the message of a server that does not start."""
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump(agent or PARROT))
    command = ["graph_agent.cli", "serve", "--config", str(file), "--port", "0", *options]
    with (folder / "errors").open("w+") as out:
        process = start_python(
            command,
            cwd=folder,
            env=_environment(folder, {}),
            stdin=subprocess.DEVNULL,
            stdout=out.fileno(),
            stderr=out.fileno(),
        )
        try:
            return process.wait(120), Path(out.name).read_text().strip()
        finally:
            process.kill()


def eventually(condition: Callable[[], Any], within_s: float = 60) -> None:
    """Wait for a condition; fail after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for has not come"
        time.sleep(0.01)


def _has_ended(process: psutil.Process) -> bool:
    try:
        # The workers' new parent need not wait for them.
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _environment(folder: Path, extra: dict[str, str]) -> dict[str, str]:
    """The variables of a server, whose temporary files stay in its folder if it is killed."""
    unwanted = {"OPENAI_API_KEY", "OPENAI_BASE_URL", "DEBUG_MOCK_RESPONSES", "GRAPH_AGENT_API_KEYS"}
    own = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**own, "PYTHONPATH": str(ROOT), "LANGSMITH_TRACING": "false", "TMPDIR": str(folder), **extra}


def _address(served: Served, begins: int, listens: str) -> str:
    """The server's address, parsed from its log from an offset on."""
    deadline = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < deadline and served.process.poll() is None:
        if found := re.search(rf"{listens}:? +(http://\S+)", served.log.read_bytes()[begins:].decode(errors="replace")):
            return found[1]
        time.sleep(0.01)
    raise AssertionError(f"The server does not listen: {served.log.read_text()}")


def wait_until_up(served: Served, path: str) -> None:
    """Wait until a GET of a path succeeds."""
    deadline = time.monotonic() + UP_WITHIN_S
    with served.http() as client:
        while time.monotonic() < deadline and served.process.poll() is None:
            try:
                if client.get(path).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.01)
    raise AssertionError(f"the server did not come up:\n{served.log.read_text()[-4000:]}")
