"""A session of 100,000 turns, its size, reading and pruning: `python -m benchmarks.long_session`.

A real session of 100 turns is repeated 1,000 times in the database, with new ids and counts. To run the turns would
take hours, as each input reads the whole history. The session is pruned as it grows. Times are measured in new
processes.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import ormsgpack
from langchain_core.messages import AIMessage

from benchmarks import harness
from benchmarks.harness import Scale, Table
from benchmarks.work import REPLY, lookup_tool
from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state.lengths import LENGTHS
from graph_agent.persistence import open_saver, prune

_INPUTS, _CALLS = 20, 4
_TURNS = _INPUTS * (_CALLS + 1)
"""Turns of the part that is repeated: each input makes calls one after the other, and is answered."""
_REPEATS = 1000
BATCH = 60
"""Repetitions between two prunings: as many checkpoints as LangGraph reads at once, as no full copy is among them."""
_PAGE = 50
_UUID = re.compile(rb"[0-9a-f]{8}(?=-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
_CALL = re.compile(rb"call_[0-9]{10}")
_STRIDE = 64
"""Difference of the first 32 bits of ids in two repetitions: half an hour in the time of a checkpoint id."""
_READ = """
import asyncio, json, sys, time
from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver

async def main(url, other, *whats):
    async with open_saver(other) as saver:  # imports what the first use of a saver and an agent imports
        await Session(create_graph_agent(ScriptedChatModel([]), checkpointer=saver), "s").events()
    taken = {}
    for what in whats:
        began = time.perf_counter()
        async with open_saver(url) as saver:
            session = Session(create_graph_agent(ScriptedChatModel(["Last."]), checkpointer=saver), "s")
            if what == "open":
                await session.status()
            elif what == "page":
                await session.status()
                began = time.perf_counter()
                page = await session.events(last=50)
                assert [event["seq"] for event in page] == list(range(page[0]["seq"], page[0]["seq"] + 50))
            elif what == "state":
                await session.interrupts()
            else:
                assert (await session.run("And now?")).answer == "Last."
            taken[what] = time.perf_counter() - began
    print(json.dumps(taken))

asyncio.run(main(*sys.argv[1:]))
"""


async def tables(scale: Scale) -> list[Table]:
    """Build the session, and measure it before and after pruning."""
    repeats = scale.size(_REPEATS)
    turns, rounds = repeats * _TURNS, 1 if scale.tiny else 5
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "long.db"
        url = f"sqlite:///{file}"
        await _run_part(url)
        part = await asyncio.to_thread(_Rows, file)
        rates: list[float] = []
        stored = 0
        for begin in range(0, repeats, BATCH):
            end = min(begin + BATCH, repeats)
            await asyncio.to_thread(part.append, max(begin, 1), end)
            if not begin:
                written = file.stat().st_size / (end * _TURNS)
                rows += [
                    ["stored per turn, before pruning", "", f"{written / 1024:.1f} KB"],
                    [
                        "last page of 50 events, before pruning",
                        "≤ 50 ms",
                        _in_new_process(url, "page", rounds=rounds)["page"],
                    ],
                ]
            began = time.perf_counter()
            report = await prune(url, keep_last=1)
            rates.append(report.checkpoints / (time.perf_counter() - began))
            stored = report.size_after
        quick = _in_new_process(url, "open", "page", rounds=rounds)
        whole = _in_new_process(url, "state", "run")
        rows += [
            ["first pruned, with its space returned", "", f"{rates[0]:,.0f} checkpoints / s"],
            ["last pruned, with its space returned", "", f"{rates[-1]:,.0f} checkpoints / s"],
            ["stored per turn", "≤ 4 KB", f"{stored / turns / 1024:.1f} KB"],
            ["opened, and its status read", "≤ 50 ms", quick["open"]],
            ["last page of 50 events", "≤ 50 ms", quick["page"]],
            ["LangGraph's whole state read", "", whole["state"]],
            ["another input answered", "", whole["run"]],
        ]
    note = (
        f"{_REPEATS * _TURNS:,} turns in SQLite; replies of 200 and results of 1,000 characters. Pruning keeps "
        "the first and the newest checkpoint. Wall time in a new process, without imports; the fastest of some."
    )
    return [Table("A long session", note, ["work", "aim", "figure"], rows)]


async def _run_part(url: str) -> None:
    """Run the turns that are repeated."""
    script: list[AIMessage | str] = []
    for number in range(_INPUTS):
        for call in range(_CALLS):
            id_ = f"call_{number * _CALLS + call:010}"
            script.append(AIMessage(REPLY, tool_calls=[{"id": id_, "name": "lookup", "args": {"key": f"key {call}"}}]))
        script += [REPLY]
    config = LoopConfig(finalize="direct", max_steps=_CALLS + 2, tool_calling="native")
    async with open_saver(url) as saver:
        agent = create_graph_agent(ScriptedChatModel(script), tools=[lookup_tool()], checkpointer=saver, config=config)
        for number in range(_INPUTS):
            result = await Session(agent, "s").run(f"Question {number}: what is the value?")
            assert result.status == "COMPLETED", result


async def build(file: Path, turns: int) -> None:
    """Store a session `s` of a number of turns, rounded up to whole repetitions, in a new SQLite file."""
    await _run_part(f"sqlite:///{file}")
    part = await asyncio.to_thread(_Rows, file)
    await asyncio.to_thread(part.append, 1, -(-turns // _TURNS))


async def build_before_prunings(folder: Path, batches: int, repeats: int) -> list[Path]:
    """Store a session that is pruned whenever it has grown by some repetitions; return its file before each."""
    file = folder / "growing.db"
    await _run_part(f"sqlite:///{file}")
    part = await asyncio.to_thread(_Rows, file)
    found: list[Path] = []
    for batch in range(batches):
        await asyncio.to_thread(part.append, max(batch * repeats, 1), (batch + 1) * repeats)
        found.append(Path(shutil.copy(file, folder / f"{batch}.db")))
        if batch < batches - 1:
            await prune(f"sqlite:///{file}", keep_last=1)
    return found


class _Rows:
    """The rows of the part that is repeated.

    Args:
        file: The database, with that part only.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(sqlite3.connect(file)) as connection:
            self._checkpoints = connection.execute(
                "SELECT checkpoint_id, parent_checkpoint_id, checkpoint, metadata FROM checkpoints"
                " ORDER BY checkpoint_id"
            ).fetchall()
            self._writes = connection.execute(
                "SELECT checkpoint_id, task_id, idx, channel, type, value, task_path FROM writes"
            ).fetchall()
        self._lengths = {
            channel: sum(len(_unpack(row[5])) for row in self._writes if row[3] == channel)
            for channel in ("events", "messages")
        }

    def append(self, begin: int, end: int) -> None:
        """Append repetitions to the session, each after the one before."""
        with closing(sqlite3.connect(self._file)) as connection, connection:
            for number in range(begin, end):
                part = _Part(number, number * self._lengths["events"])
                last = _Part(number - 1, 0).id(self._checkpoints[-1][0])
                connection.executemany(
                    "INSERT INTO checkpoints VALUES ('s', '', ?, ?, 'msgpack', ?, ?)",
                    [
                        (
                            part.id(id_),
                            part.id(parent) if parent else last,
                            part.checkpoint(stored),
                            part.metadata(metadata, self._lengths),
                        )
                        for id_, parent, stored, metadata in self._checkpoints
                    ],
                )
                connection.executemany(
                    "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value,"
                    " task_path) VALUES ('s', '', ?, ?, ?, ?, ?, ?, ?)",
                    [
                        (part.id(id_), task, index, channel, kind, part.write(channel, value), path)
                        for id_, task, index, channel, kind, value, path in self._writes
                    ],
                )


class _Part:
    """One repetition.

    Args:
        number: Its number.
        events: Number of events before it.
    """

    def __init__(self, number: int, events: int) -> None:
        self._number = number
        self._events = events

    def id(self, id_: str) -> str:
        """Return a checkpoint's id."""
        return self._renamed(id_.encode()).decode()

    def checkpoint(self, stored: bytes) -> bytes:
        """Return a checkpoint."""
        checkpoint = _unpack(self._renamed(stored))
        if isinstance(loop := checkpoint["channel_values"].get("loop"), dict):
            self._count(loop)
        return ormsgpack.packb(checkpoint, option=ormsgpack.OPT_NON_STR_KEYS)

    def metadata(self, stored: bytes, before: dict[str, int]) -> bytes:
        """Return the metadata of a checkpoint.

        Args:
            before: The entries of one repetition, by channel.
        """
        found = json.loads(stored)
        lengths = found.get(LENGTHS, {})
        found[LENGTHS] = {name: length + self._number * before[name] for name, length in lengths.items()}
        return json.dumps(found).encode()

    def write(self, channel: str, stored: bytes) -> bytes:
        """Return the value of a write."""
        if channel != "loop":
            return self._renamed(stored)
        loop = _unpack(self._renamed(stored))
        self._count(loop)
        return ormsgpack.packb(loop, option=ormsgpack.OPT_NON_STR_KEYS)

    def _count(self, loop: dict[str, Any]) -> None:
        loop["turn"] += self._number * _TURNS
        if "events_before" in loop:
            loop["events_before"] += self._events

    def _renamed(self, stored: bytes) -> bytes:
        renamed = _UUID.sub(lambda found: b"%08x" % ((int(found[0], 16) + _STRIDE * self._number) % 2**32), stored)
        return _CALL.sub(lambda found: b"call_%010d" % (int(found[0][5:]) + self._number * _INPUTS * _CALLS), renamed)


def _unpack(stored: bytes) -> Any:
    return ormsgpack.unpackb(stored, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)


def _in_new_process(url: str, *whats: str, rounds: int = 1) -> dict[str, str]:
    """Return the shortest time of each reading in some new processes."""
    command = [sys.executable, "-c", _READ, url, f"{url}.other", *whats]
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    return {what: f"{1000 * min(each[what] for each in found):,.0f} ms" for what in whats}


if __name__ == "__main__":
    harness.main(tables, __doc__)
