"""Where the CPU time of a turn goes, by layer and function: `python -m benchmarks.profile`.

A timer interrupts the process after each millisecond of CPU time or at the kernel's own tick, whichever is longer, and
the stack of the main thread is recorded, so that small functions are not slowed down by the measurement. A sample
counts for the layer and the function at the top of the stack ("own"; built-in functions count for their caller), for
the innermost function of this package on the stack ("charged": own time and that of the libraries it calls), and for
every function on the stack ("callees"). The time of other threads, such as a saver's, counts for the code that the main
thread runs meanwhile. `--work` selects one session, 100 concurrent sessions, one streamed answer, or the server with 32
clients.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import signal
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import uvicorn
import uvloop

from benchmarks.harness import Trial, Work, milliseconds
from benchmarks.streaming import stream_trial
from benchmarks.work import Opener, create_agent_session, graph_agent_session, own_saver, sessions_trial, stock_saver

_ROOT = Path(__file__).resolve().parents[1]
_STDLIB = sysconfig.get_path("stdlib")
_INTERVAL_S = 0.001
_DISTRIBUTIONS = {
    "langgraph": "LangGraph",
    "langchain_core": "LangChain core",
    "langchain": "LangChain",
    "langsmith": "LangSmith",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic",
    **dict.fromkeys(("uvicorn", "starlette", "fastapi", "sse_starlette", "httptools", "anyio"), "HTTP and anyio"),
}


@functools.cache
def layer_of(path: str) -> str:
    """Return the layer of a source file."""
    if "site-packages" in path:
        return _DISTRIBUTIONS.get(Path(path.split("site-packages/")[1]).parts[0].removesuffix(".py"), "other")
    if path.startswith("<frozen"):
        return "stdlib"
    if path.startswith(_STDLIB):
        return "asyncio" if "/asyncio/" in path else "stdlib"
    resolved = Path(path).resolve()
    if not resolved.is_relative_to(_ROOT):
        return "other"
    parts = resolved.relative_to(_ROOT).parts
    if parts[0] == "nodes":
        return "graph_agent.nodes"
    if parts[0] != "graph_agent":
        return "benchmark"
    return f"graph_agent.{parts[1]}".removesuffix(".py")


def _is_ours(code: CodeType) -> bool:
    return layer_of(code.co_filename).startswith("graph_agent")


@dataclass
class Samples:
    """The samples of a profile."""

    total: int = 0
    layers: Counter[str] = field(default_factory=Counter)
    own: Counter[CodeType] = field(default_factory=Counter)
    charged: Counter[CodeType] = field(default_factory=Counter)
    with_callees: Counter[CodeType] = field(default_factory=Counter)
    collecting_s: float = 0.0
    """CPU seconds of garbage collection, which count for the function that triggered it."""
    cpu_s: float = 0.0

    def record(self, frame: FrameType | None) -> None:
        """Record one stack."""
        if frame is None:
            return
        self.total += 1
        self.layers[layer_of(frame.f_code.co_filename)] += 1
        self.own[frame.f_code] += 1
        seen: set[CodeType] = set()
        charged = False
        while frame is not None:
            seen.add(frame.f_code)
            if not charged and _is_ours(frame.f_code):
                self.charged[frame.f_code] += 1
                charged = True
            frame = frame.f_back
        self.with_callees.update(seen)

    def share(self, count: int) -> str:
        """Format a number of samples as a share of all."""
        return f"{100 * count / max(1, self.total):5.1f} %"


@contextmanager
def sampling(samples: Samples) -> Iterator[None]:
    """Sample the main thread."""
    began = 0.0

    def collecting(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.process_time()
        else:
            samples.collecting_s += time.process_time() - began

    previous = signal.signal(signal.SIGPROF, lambda _, frame: samples.record(frame))
    gc.callbacks.append(collecting)
    cpu = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        samples.cpu_s += time.process_time() - cpu
        gc.callbacks.remove(collecting)
        signal.signal(signal.SIGPROF, previous)


def report(samples: Samples, units: int, unit: str, functions: int) -> str:
    """Format the layers and the costliest functions of this package.

    Args:
        samples: The samples.
        units: Units of work that were run.
        unit: Name of the unit.
        functions: Number of functions to list.
    """
    per = samples.cpu_s / units
    ours = sum(count for layer, count in samples.layers.items() if layer.startswith("graph_agent"))
    lines = [f"{samples.total} samples, {milliseconds(per)} CPU per {unit}", "", f"{'layer':32} {'own':>7}  per {unit}"]
    grouped = [("graph_agent", ours), *((at, n) for at, n in samples.layers.items() if at[:11] != "graph_agent")]
    for layer, count in sorted(grouped, key=lambda item: -item[1]):
        lines.append(f"{layer:32} {samples.share(count)}  {milliseconds(per * count / max(1, samples.total))}")
        if layer == "graph_agent":
            inner = [(at, n) for at, n in samples.layers.most_common() if at.startswith("graph_agent.")]
            lines += [f"  {at.removeprefix('graph_agent.'):30} {samples.share(count)}" for at, count in inner]
    collected = 100 * samples.collecting_s / max(samples.cpu_s, 1e-9)
    lines += [f"{'(of which garbage collection)':32} {collected:5.1f} %", ""]
    ours_only = [code for code in samples.with_callees if _is_ours(code)]
    others = [code for code in samples.own if not _is_ours(code)]
    for title, codes, counts in (
        ("this package by own time", ours_only, samples.own),
        ("this package by charged time", ours_only, samples.charged),
        ("other layers by own time", others, samples.own),
    ):
        lines.append(f"{'own':>7} {'charged':>8} {'callees':>8}  functions of {title}")
        lines += [_function(samples, code) for code in sorted(codes, key=lambda code: -counts[code])[:functions]]
        lines.append("")
    return "\n".join(lines)


def _function(samples: Samples, code: CodeType) -> str:
    path = code.co_filename.split("site-packages/")[-1].removeprefix(f"{_STDLIB}/").removeprefix(f"{_ROOT}/")
    counts = (samples.own[code], samples.charged[code], samples.with_callees[code])
    shares = " ".join(f"{samples.share(count):>8}" for count in counts)
    return f"{shares[1:]}  {path}:{code.co_firstlineno} {code.co_qualname}"


def _turns_trial(agent: str, saver: str, turns: int, sessions: int) -> Trial:
    opener: Opener | None = {"none": None, "stock": stock_saver}.get(saver, own_saver)
    make: Callable[..., Any] = functools.partial(create_agent_session, turns)
    if agent == "graph-agent":
        effect: Literal["read", "write"] = "write" if saver == "own-writing" else "read"
        make = functools.partial(graph_agent_session, turns, effect=effect)
    return sessions_trial(make, opener=opener, sessions=sessions)


async def profile(trial: Trial, seconds: float) -> tuple[Samples, int]:
    """Prepare a trial once and run it repeatedly; return the samples and the number of runs.

    Args:
        trial: The trial; its first run is not sampled.
        seconds: CPU time to sample.
    """
    samples, runs = Samples(), 0
    async with trial() as work:
        await work()
        gc.collect()
        while samples.cpu_s < seconds:
            with sampling(samples):
                await work()
            runs += 1
    return samples, runs


@asynccontextmanager
async def server_trial(requests: int) -> AsyncIterator[Work]:
    """Serve in this process, as `graph-agent serve` does, to clients in another; yield the work of those clients."""
    from graph_agent.interfaces.server.admission.connections import BoundedProtocol
    from graph_agent.interfaces.server.agent_source import of_file
    from graph_agent.interfaces.server.app import create_app
    from graph_agent.interfaces.server.settings import ServerSettings
    from graph_agent.server.serve import freeze_gc

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.yaml"
        file.write_text('{name: bench, model: "benchmarks.serve_model:SaysTheSame", description: Returns one text.}')
        app = create_app(of_file(file, None), settings=ServerSettings(), db=f"sqlite:///{folder}/bench.db")
        server = uvicorn.Server(uvicorn.Config(app, port=0, http=BoundedProtocol, log_level="error", access_log=False))
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 # uvicorn has no event for it
            await asyncio.sleep(0.01)
        freeze_gc()
        port = server.servers[0].sockets[0].getsockname()[1]

        async def work() -> None:
            code = (
                "import asyncio; from benchmarks.serve import ask\n"
                f"async def main(): await asyncio.gather(*(ask({port}, {requests}, []) for _ in range(32)))\n"
                "asyncio.run(main())"
            )
            client = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
            if await client.wait():
                raise SystemExit("The clients failed.")

        try:
            yield work
        finally:
            server.should_exit = True
            await serving


def main() -> None:
    """Read the command line, profile, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=["turns", "sessions", "stream", "serve"], default="turns")
    parser.add_argument("--agent", choices=["graph-agent", "create_agent"], default="graph-agent")
    parser.add_argument("--turns", type=int, help="turns of a session; default 200, or 5 for concurrent sessions")
    parser.add_argument("--saver", choices=["none", "own", "own-writing", "stock"], default="none")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU time to sample")
    parser.add_argument("--functions", type=int, default=25)
    given = parser.parse_args()
    sessions = 100 if given.work == "sessions" else 1
    turns = given.turns or (5 if sessions > 1 else 200)
    trial: Trial = functools.partial(server_trial, 10)
    units, unit = 320, "request"
    if given.work == "stream":
        trial, units, unit = stream_trial(given.agent, 1_000), 1_000, "token"
    elif given.work != "serve":
        trial, units, unit = _turns_trial(given.agent, given.saver, turns, sessions), turns * sessions, "turn"
    # The server's own event loop is uvloop's.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if given.work == "serve" else None) as runner:
        samples, runs = runner.run(profile(trial, given.seconds))
    print(report(samples, runs * units, unit, given.functions))


if __name__ == "__main__":
    main()
