"""Clients that repeat requests without a key, while runs fail, connections are cut and servers are killed."""

from __future__ import annotations

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
import pytest

from tests.attack.report import SCALE, SEED, note_faults
from tests.interfaces.server.booking import BOOKER, bookings
from tests.interfaces.server.process import Served, serving

pytestmark = pytest.mark.attack

CLIENTS = 6
WITHIN_S = 120
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {},
    "/v1/messages": {"max_tokens": 100},
    "/v1/responses": {"store": False},
    "/v1/responses ": {},
}
FAULTS = ("none", "fail", "fail for a while", "cut", "kill while the model answers", "kill within the call")


@dataclass
class Fleet:
    """Two servers on one database; a killed one is replaced."""

    folder: Path
    stack: ExitStack
    servers: list[Served] = field(default_factory=list)
    kills: int = 0
    cuts: int = 0
    _started: int = 0
    _lock: Lock = field(default_factory=Lock)

    def start(self) -> None:
        place = self.folder / f"server {self._started}"
        place.mkdir()
        self._started += 1
        options = ("--db", f"sqlite:///{self.folder / 'sessions.db'}")
        self.servers.append(self.stack.enter_context(serving(place, *options, agent=BOOKER)))

    def kill(self, server: Served) -> None:
        with self._lock:
            if server in self.servers:
                server.kill_all()
                self.servers.remove(server)
                self.kills += 1
                self.start()

    def pick(self, choice: random.Random) -> Served:
        with self._lock:
            return choice.choice(self.servers)


def test_requests_that_are_repeated_until_they_succeed_book_once(tmp_path: Path) -> None:
    found: list[str] = []
    with ExitStack() as stack, ThreadPoolExecutor(CLIENTS) as pool:
        fleet = Fleet(tmp_path, stack)
        for _ in range(2):
            fleet.start()
        for round_ in range(2 * SCALE):
            folders = [tmp_path / f"order {round_}-{number}".replace(" ", "-") for number in range(CLIENTS)]
            found += [fault for each in pool.map(lambda folder: _order(fleet, folder), folders) for fault in each]
    note_faults("requests repeated without a key", "kills", fleet.kills, found)
    note_faults("requests repeated without a key", "cuts", fleet.cuts)

    assert found == []


def _order(fleet: Fleet, folder: Path) -> list[str]:
    """Repeat one order until its answer is there; return what was wrong with it."""
    choice = random.Random(f"{SEED} {folder.name}")
    path, fields = choice.choice(sorted(PATHS.items()))
    fault = choice.choice(FAULTS)
    folder.mkdir()
    name = {"fail": "fail-once", "fail for a while": "fail", "kill within the call": "hold"}.get(fault, "wait")
    if fault != "none":
        (folder / name).write_text(choice.choice(["400", "503"]) if "fail" in name else "")
    text = f"book {folder} {choice.choice(['', 'quietly'])}"
    messages = [{"role": "user", "content": text}]
    body = {"model": "booker", "input" if "responses" in path else "messages": messages, **fields}
    begun, tries = time.monotonic(), 0
    while time.monotonic() - begun < WITHIN_S:
        server, sent = fleet.pick(choice), {**body, "stream": choice.random() < 0.5}
        held = (folder / name).exists() and name in ("wait", "hold")
        try:
            if held:
                if _leave(server, path.strip(), sent, folder / f"{name}.reached"):
                    fleet.cuts += 1
                    if "kill" in fault:
                        fleet.kill(server)
                    (folder / name).unlink()
                continue
            with server.http() as http:
                answer = http.post(path.strip(), json=sent)
        except (httpx.TransportError, OSError):
            continue
        tries += 1
        if tries == 2:
            (folder / "fail").unlink(missing_ok=True)
        if answer.status_code == 200 and "FAILED" not in answer.text and "event: error" not in answer.text:
            return _faults(folder, fault, answer.text)
    return [f"{folder.name}, {fault}: no answer"]


def _leave(server: Served, path: str, body: dict[str, Any], reached: Path) -> bool:
    """Send a request, and close the connection once the run waits; return False if the server ends before."""
    content, url = json.dumps(body).encode(), httpx.URL(server.url)
    head = f"POST {path} HTTP/1.1\r\nhost: {url.host}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=30) as connection:
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        connection.settimeout(0.05)
        while not reached.exists():
            try:
                if not connection.recv(65_536):
                    return False
            except TimeoutError:
                pass
    return True


def _faults(folder: Path, fault: str, answer: str) -> list[str]:
    count = bookings(folder)
    is_unknown = "repeating it" in answer
    return [] if count == 1 or (count == 0 and is_unknown) else [f"{folder.name}, {fault}: booked {count} times"]
