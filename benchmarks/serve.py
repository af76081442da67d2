"""Cost of the server per request, compared with bare FastAPI and the same tokens: `python -m benchmarks.serve`.

Both are real uvicorn processes; the agent's model is scripted and takes no time. Each round asks one after the other,
and the figures are medians over the rounds, so that a machine whose speed drifts does not tilt them. `--rounds` sets
how many, `--clients` how many ask at the same time; `--soak` asks that many requests and shows the server's memory.

A client that asks again as soon as it is answered keeps the server at its limit, where a request waits for all others
whatever is done: that is what requests per second are for. The paced figures are of clients that ask `--rate` times a
second all together, which is how long a first token takes on a server that has work, and not more than it can do.
"""

from __future__ import annotations

import argparse
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server

import psutil  # type: ignore[import-untyped] # it has no types of its own

from benchmarks.serve_model import TOKENS

_AGENT = '{name: bench, model: "benchmarks.serve_model:SaysTheSame", description: Says the same.}'
_BODY = json.dumps({"model": "bench", "stream": True, "messages": [{"role": "user", "content": "Say it."}]}).encode()


@dataclass(frozen=True)
class Server:
    """A server under test."""

    name: str
    port: int
    process: psutil.Process

    def megabytes(self) -> float:
        """Its resident memory."""
        return float(self.process.memory_info().rss / 1e6)


@dataclass(frozen=True)
class Round:
    """The figures of one round."""

    per_s: float
    """Requests in a second."""
    first_ms: float
    """Median time to the first token."""


async def ask(port: int, requests: int, firsts: list[float], every_s: float = 0.0) -> None:
    """Be one client: ask some requests over one connection, and note when each first token came.

    Args:
        port: The server's.
        requests: How many.
        firsts: Where the seconds to each first token go.
        every_s: Seconds between two requests, begun at random so that clients do not march in step; 0 for no pause.
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


async def one_round(server: Server, clients: int, requests: int, rate: float | None = None) -> Round:
    """Let some clients ask at the same time; `rate` times a second all together, or as often as they can."""
    firsts: list[float] = []
    every_s = clients / rate if rate else 0.0
    began = time.perf_counter()
    await asyncio.gather(*(ask(server.port, requests, firsts, every_s) for _ in range(clients)))
    return Round(clients * requests / (time.perf_counter() - began), statistics.median(firsts) * 1000)


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


async def compare(
    ours: Server, bare: Server, clients: int, rounds: int, requests: int, rate: float | None = None
) -> None:
    """Print how the two compare with so many clients; `rate` as in `one_round`."""
    seen: dict[str, list[Round]] = {ours.name: [], bare.name: []}
    for server in (ours, bare):
        await one_round(server, clients, requests, rate)
    for _ in range(rounds):
        for server in (ours, bare):
            seen[server.name].append(await one_round(server, clients, requests, rate))
    pairs = list(zip(seen[ours.name], seen[bare.name], strict=True))
    per_s = statistics.median(one.per_s for one, _ in pairs)
    first = statistics.median(one.first_ms for one, _ in pairs)
    ratio = statistics.median(one.per_s / other.per_s for one, other in pairs)
    later = statistics.median(one.first_ms - other.first_ms for one, other in pairs)
    print(
        f"{clients:>4} clients{', paced' if rate else ''}: {per_s:7.0f} requests/s ({ratio:4.2f} of bare), "
        f"first token after {first:7.1f} ms ({later:+7.1f} ms to bare)"
    )


async def soak(server: Server, requests: int) -> None:
    """Print the server's memory while it answers many requests."""
    tenth = max(1, requests // 10)
    print(f"memory before: {server.megabytes():6.1f} MB")
    for done in range(tenth, requests + 1, tenth):
        await one_round(server, 10, max(1, tenth // 10))
        print(f"after {done:>6} requests: {server.megabytes():6.1f} MB", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--soak", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agent.yaml").write_text(_AGENT)
        agent = ["--config", str(folder / "agent.yaml"), "--db", f"sqlite:///{folder / 'bench.db'}"]
        with (
            started("graph-agent", ["graph_agent.cli.app", "serve", *agent], folder) as ours,
            started("bare", ["uvicorn", "benchmarks.serve_bare:app", "--no-access-log"], folder) as bare,
        ):
            for clients in given.clients:
                requests = max(2, 200 // clients)
                asyncio.run(compare(ours, bare, clients, given.rounds, requests))
                asyncio.run(compare(ours, bare, clients, given.rounds, max(1, 80 // clients), given.rate))
            asyncio.run(soak(ours, given.soak))


if __name__ == "__main__":
    main()
