"""A cluster on this machine: PostgreSQL, Redis and instances of Aegra on loopback; removed when its context ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deploy.aegra.services import Services, services

ROOT = Path(__file__).parents[2]
SETTINGS = Path(__file__).with_name("aegra.env")
_UP_WITHIN_S = 120
_ABSENT = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DEBUG_MOCK_RESPONSES", "AEGRA_CONFIG")


class Instance:
    """One instance of Aegra, on a free port of loopback.

    Args:
        name: Its name, for its log.
        python: The interpreter that has Aegra.
        environment: Its environment.
        folder: The folder of its log.
    """

    def __init__(self, name: str, python: str, environment: dict[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        # The port is bound here and inherited, so no other process can take it in between.
        with socket.create_server(("127.0.0.1", 0)) as bound, self.log.open("ab") as log:
            self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            command = [python, "-m", "uvicorn", "aegra_api.main:app", "--fd", str(bound.fileno())]
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**environment, "SERVER_URL": self.url},
                stdout=log,
                stderr=log,
                pass_fds=[bound.fileno()],
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Return when the instance serves requests.

        Raises:
            RuntimeError: If it ends, or is not ready in time.
        """
        deadline = time.monotonic() + _UP_WITHIN_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"Instance {self.name} did not come up:\n{self.log.read_text(errors='replace')[-4000:]}")

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Stop its process with SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue its process with SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def events(self, run_id: str) -> list[str]:
        """Return the messages that it has logged about a run."""
        found: list[str] = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("run_id") == run_id:
                    found.append(str(entry.get("event")))
        return found

    def close(self) -> None:
        """End it and every process that it has started."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        self.process.wait()


class Cluster:
    """The running cluster.

    Args:
        python: The interpreter that has Aegra.
        given: The services' addresses.
        folder: Its temporary folder.
        settings: Variables that replace those of `aegra.env`.
    """

    def __init__(self, python: str, given: Services, folder: Path, settings: dict[str, str]) -> None:
        self.services = given
        self.payments_file = folder / "payments.jsonl"
        self.instances: list[Instance] = []
        self._python = python
        self._folder = folder
        inherited = {name: value for name, value in os.environ.items() if name not in _ABSENT}
        self._environment = {
            **inherited,
            **read_settings(SETTINGS),
            "DATABASE_URL": given.database_url,
            "REDIS_URL": given.redis_url,
            "HOTEL_DB": str(folder / "hotel.db"),
            "GRAPH_AGENT_TODAY": "2026-11-21",
            "PAYMENTS_FILE": str(self.payments_file),
            **settings,
        }

    def start(self, name: str) -> Instance:
        """Start an instance, and wait until it serves; the first must be up before others, as it creates the tables."""
        instance = Instance(name, self._python, self._environment, self._folder)
        self.instances.append(instance)
        instance.wait_until_ready()
        return instance

    def replace_killed(self) -> None:
        """Start an instance in the place of each that was killed."""
        for killed in [instance for instance in self.instances if instance.process.poll() is not None]:
            self.instances.remove(killed)
            self.start(killed.name + "'")

    def payments(self, session: str) -> list[dict[str, Any]]:
        """Return the payments of a session, as its tools have made them."""
        lines = self.payments_file.read_text().splitlines() if self.payments_file.exists() else []
        return [line for line in map(json.loads, lines) if line["session"] == session]


@contextmanager
def cluster(python: str, **settings: str) -> Iterator[Cluster]:
    """Run the services for the context, and end every process that was started within it.

    Args:
        python: The interpreter that has Aegra.
        settings: Variables of the instances' environment.

    Raises:
        MissingServiceError: If PostgreSQL or Redis is not installed.
    """
    folder = Path(tempfile.mkdtemp(prefix="aegra-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        running = Cluster(python, stack.enter_context(services(folder)), folder, settings)

        def close() -> None:
            for instance in running.instances:
                instance.close()

        stack.callback(close)
        yield running


def read_settings(path: Path) -> dict[str, str]:
    """Return the variables of a file with lines `NAME=value`."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
