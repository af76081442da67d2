"""Cost of the server per request, compared with bare FastAPI and the same tokens: `python -m benchmarks.serve`.

Both are uvicorn processes with one worker; the agent's model is scripted, takes no time, and answers with 32 tokens.
Clients that ask again at once keep the server at its limit, which gives requests per second. Paced clients ask 40 times
a second in total, which gives the time to the first token on a server with spare capacity. CPU time is that of the
server process.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server

import psutil

from benchmarks import harness
from benchmarks.harness import Scale, Spread, Table, milliseconds, quartiles
from benchmarks.serve_model import TOKENS

AGENT = '{name: bench, model: "benchmarks.serve_model:SaysTheSame", description: Returns one text.}'
_BODY = json.dumps({"model": "bench", "stream": True, "messages": [{"role": "user", "content": "Go."}]}).encode()
_RATE = 40.0


@dataclass(frozen=True)
class Server:
    """A server under test."""

    name: str
    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return its CPU time so far, in seconds."""
        return time.clock_gettime(~self.process.pid << 3 | 2)  # Linux's clock of a process; psutil's steps are 10 ms

    def megabytes(self) -> float:
        """Return its resident memory."""
        return float(self.process.memory_info().rss / 1e6)


@dataclass(frozen=True)
class Round:
    """The figures of one round."""

    per_s: float
    """Requests per second."""
    first_s: float
    """Median seconds to the first token."""
    cpu_s: float
    """CPU seconds of the server per request."""


async def ask(port: int, requests: int, firsts: list[float], every_s: float = 0.0) -> None:
    """Send requests over one connection, and record when each first token came.

    Args:
        port: The port of the server.
        requests: Number of requests.
        firsts: Receives the seconds to each first token.
        every_s: Seconds between two requests, after a random start; 0 to ask again at once.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(_BODY)}\r\n\r\n"
    ).encode()
    due = time.perf_counter() + random.uniform(0, every_s)
    for _ in range(requests):
        await asyncio.sleep(due - time.perf_counter() if every_s else 0)
        due += every_s
        began = time.perf_counter()
        writer.write(head + _BODY)
        await reader.readuntil(TOKENS[0].encode())
        firsts.append(time.perf_counter() - began)
        await reader.readuntil(b"[DONE]")
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    await writer.wait_closed()


async def one_round(server: Server, clients: int, requests: int, rate: float | None) -> Round:
    """Run some clients at the same time: `rate` requests a second in total, or as many as possible."""
    firsts: list[float] = []
    every_s = clients / rate if rate else 0.0
    began, cpu = time.perf_counter(), server.cpu_s()
    await asyncio.gather(*(ask(server.port, requests, firsts, every_s) for _ in range(clients)))
    total = clients * requests
    return Round(total / (time.perf_counter() - began), statistics.median(firsts), (server.cpu_s() - cpu) / total)


@contextmanager
def started(name: str, command: list[str], folder: Path) -> Iterator[Server]:
    """Start a server and wait until it is ready."""
    with create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", *command, "--port", str(port)], stdout=log, stderr=log)
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready"):
                    break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit((folder / f"{name}.log").read_text()) from None
                time.sleep(0.05)
        yield Server(name, port, psutil.Process(process.pid))
    finally:
        process.kill()
        process.wait()


@contextmanager
def servers() -> Iterator[dict[str, Server]]:
    """Start the agent's server and the bare one."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "agent.yaml").write_text(AGENT)
        agent = ["--config", str(folder / "agent.yaml"), "--db", f"sqlite:///{folder / 'bench.db'}"]
        commands = {
            "graph-agent": ["graph_agent.interfaces.cli.app", "serve", *agent],
            "bare FastAPI": ["uvicorn", "benchmarks.serve_bare:app", "--no-access-log"],
        }
        yield {name: stack.enter_context(started(name, command, folder)) for name, command in commands.items()}


async def compare(
    running: dict[str, Server], clients: int, requests: int, rate: float | None, scale: Scale
) -> dict[str, list[Round]]:
    """Measure the servers in turn."""
    rounds: dict[str, list[Round]] = {name: [] for name in running}
    for server in running.values():
        await one_round(server, clients, requests, rate)
    since, count = time.monotonic(), 0
    while scale.more(count, since):
        for name, server in running.items():
            rounds[name].append(await one_round(server, clients, requests, rate))
        count += 1
    return rounds


def _row(label: str, mine: list[Round], bare: list[Round], aims: tuple[str, str]) -> list[str]:
    per_s = Spread.of([one.per_s for one in mine])
    cpu = statistics.median(one.cpu_s for one in mine)
    ratio = Spread.of([one.cpu_s / other.cpu_s for one, other in zip(mine, bare, strict=True) if other.cpu_s] or [0.0])
    later = Spread.of([1000 * (one.first_s - other.first_s) for one, other in zip(mine, bare, strict=True)])
    return [
        label,
        milliseconds(cpu),
        f"{ratio.median:.2f}",
        f"{per_s.median:.0f}",
        quartiles(per_s, 0),
        aims[0],
        milliseconds(statistics.median(one.first_s for one in mine)),
        f"{later.median:+.1f} ms",
        aims[1],
    ]


async def tables(scale: Scale) -> list[Table]:
    """Compare the servers at their limit and below it."""
    rows: list[list[str]] = []
    with servers() as running:
        before = {name: server.megabytes() for name, server in running.items()}
        for clients, requests, rate, label in (
            (1, 50, None, "1 client, at once"),
            (32, 5, None, "32 clients, at once"),
            (32, 2, _RATE, "32 clients, 40 requests a second"),
        ):
            measured = await compare(running, scale.size(clients), scale.size(requests), rate, scale)
            for name in running:
                ours = name == "graph-agent" and label == "32 clients, at once"
                aims = ("≥ 400", "≤ +15 ms") if ours else ("", "")
                rows.append(_row(f"{label}, {name}", measured[name], measured["bare FastAPI"], aims))
        memory = ", ".join(
            f"{name} {before[name]:.0f} to {server.megabytes():.0f} MB" for name, server in running.items()
        )
    columns = ["work", "CPU", "CPU ratio", "requests/s", "quartiles", "aim", "first token", "to bare's", "aim"]
    note = f"Answers of 32 tokens, one worker; CPU per request of the server. Memory before and after: {memory}."
    return [Table("The server", note, columns, rows)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
