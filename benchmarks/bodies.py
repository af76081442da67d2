"""How long one request's body holds the server's event loop: `python -m benchmarks.bodies`.

The application runs in this process, behind a client that sends the body in pieces of 64 KiB. A heartbeat on the same
loop records the longest time between two beats. Each body is sent several times (`--times`), and the best run counts,
as other processes on the machine only add to it. Columns: the body's size, the status, milliseconds of the longest hold
(wall clock), milliseconds of the loop's thread within one beat (CPU), and seconds until the response was complete.

`--only TEXT` selects bodies by name. `--model` is `scripted` (default) or `openai`: langchain-openai's client with a
provider that answers in this process, which adds the encoding of the provider's request.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.body_samples import SAMPLES, Sample
from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.interfaces.server.app import create_app
from graph_agent.interfaces.server.settings import ServerSettings
from graph_agent.server import AgentSource
from graph_agent.server.serve import freeze_gc

_CHUNK = 65_536


@dataclass
class Hold:
    """The longest time between two beats of a loop, in seconds."""

    wall: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of one request."""

    status: int
    hold: Hold
    seconds: float
    text: str


async def watch(hold: Hold) -> None:
    """Beat until cancelled, and record the longest time between two beats."""
    wall, cpu = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(0)
        now, used = time.perf_counter(), time.thread_time()
        hold.wall, hold.cpu = max(hold.wall, now - wall), max(hold.cpu, used - cpu)
        wall, cpu = now, used


async def send(app: Any, sample: Sample, body: bytes) -> Outcome:
    """Send one body to the application, and wait for the end of the response."""
    pieces = [body[at : at + _CHUNK] for at in range(0, len(body), _CHUNK)] or [b""]
    headers = {"host": "127.0.0.1", "content-type": "application/json", **sample.headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": sample.method,
        "scheme": "http",
        "path": sample.path,
        "raw_path": sample.path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    status, received, sent = 0, bytearray(), 0
    ended = asyncio.Event()

    async def receive() -> Any:
        nonlocal sent
        if sent < len(pieces):
            await asyncio.sleep(0)
            sent += 1
            return {"type": "http.request", "body": pieces[sent - 1], "more_body": sent < len(pieces)}
        await ended.wait()
        return {"type": "http.disconnect"}

    async def note(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            received.extend(message.get("body", b"")[:300])

    gc.collect()
    hold = Hold()
    beating = asyncio.create_task(watch(hold))
    await asyncio.sleep(0)
    began = time.perf_counter()
    try:
        await app(scope, receive, note)
        seconds = time.perf_counter() - began
        # Work after the response, such as storing a task, holds the loop as well.
        await asyncio.sleep(0.3)
    finally:
        ended.set()
        beating.cancel()
        await asyncio.wait([beating])
    return Outcome(status, hold, seconds, bytes(received[:300]).decode(errors="replace"))


def _openai_model() -> ChatOpenAI:
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = [{"index": 0, "delta": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]
    choice = {"index": 0, "message": delta[0]["delta"], "finish_reason": "stop"}
    whole = {**chunk, "object": "chat.completion", "choices": [choice]}
    stream = f"data: {json.dumps({**chunk, 'choices': delta})}\n\ndata: [DONE]\n\n"

    async def answer(request: httpx.Request) -> httpx.Response:
        if not json.loads(await request.aread()).get("stream"):
            return httpx.Response(200, json=whole)
        return httpx.Response(200, text=stream, headers={"content-type": "text/event-stream"})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return ChatOpenAI(
        model="m", api_key=SecretStr("none"), base_url="http://provider/v1", http_async_client=client, max_retries=0
    )


@asynccontextmanager
async def application(model: str, settings: ServerSettings) -> AsyncIterator[Any]:
    """The server's application over a database file of its own."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield create_graph_agent(_openai_model() if model == "openai" else ScriptedChatModel(["Yes."], cycle=True))

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(AgentSource("bench", "", f"sqlite:///{folder}/bench.db", opened), settings=settings)
        async with app.router.lifespan_context(app):
            freeze_gc()
            yield app


async def measure(model: str, times: int, chosen: Callable[[Sample], bool], settings: ServerSettings) -> None:
    """Print a line for each body."""
    print(f"{'body':56} {'MB':>6} {'status':>6} {'hold ms':>8} {'cpu ms':>7} {'s':>6}")
    async with application(model, settings) as app:
        warm = next(sample for sample in SAMPLES if sample.name.startswith("chat: 200 turns"))
        await send(app, warm, warm.body())
        for sample in SAMPLES:
            if not chosen(sample):
                continue
            body = sample.body()
            outcomes = [await send(app, sample, body) for _ in range(times)]
            best = min(outcomes, key=lambda outcome: outcome.hold.wall)
            wall, cpu = best.hold.wall * 1000, min(outcome.hold.cpu for outcome in outcomes) * 1000
            size = len(body) / 1e6
            line = f"{sample.name:56} {size:6.2f} {best.status:6} {wall:8.1f} {cpu:7.1f} {best.seconds:6.2f}"
            print(line, flush=True)


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--model", choices=["scripted", "openai"], default="scripted")
    asked = parser.parse_args()
    logging.disable(logging.ERROR)
    asyncio.run(measure(asked.model, asked.times, lambda sample: asked.only in sample.name, ServerSettings()))


if __name__ == "__main__":
    main()
