"""Runs the work of `benchmarks.peers` with one framework, whose module `python -m benchmarks.peer_worker` gets.

Each line of the input is a job: sessions at the same time, each of one input with some turns. Each line of the output
is its cost. It needs no package but the framework's.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peer_agents.script import REPLY, Script, script


async def _answer(ask: Any, turns: int, session: str) -> Script:
    own = Script(turns)
    script.set(own)
    answer = await ask(session)
    if own.calls != turns + 1 or answer != REPLY:
        raise RuntimeError(f"The model was asked {own.calls} times in {turns} turns; the answer: {answer}")
    return own


async def _cost(framework: Any, job: dict[str, Any]) -> dict[str, float]:
    turns = job["turns"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if job["stores"] else None
        async with framework.opened(turns, folder) as ask:
            gc.collect()
            if not job["stores"]:
                await _answer(ask, turns, "warm-up")
            cpu, wall = time.process_time(), time.perf_counter()
            scripts = await asyncio.gather(*(_answer(ask, turns, f"s{at}") for at in range(job["sessions"])))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        stored = _size(Path(name))
    stamps = scripts[0].stamps
    width = min(20, len(stamps) // 3)
    early = stamps[width + width // 2] - stamps[width // 2]
    return {"cpu": cpu, "wall": wall, "stored": stored, "late": (stamps[-1] - stamps[-1 - width]) / (early or 1)}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def _main(name: str) -> None:
    framework = importlib.import_module(f"benchmarks.peer_agents.{name}")
    print(json.dumps({"stores": getattr(framework, "STORES", "")}), flush=True)
    for line in sys.stdin:
        print(json.dumps(await _cost(framework, json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
