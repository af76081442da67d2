"""Runs an adapter's agent in the environment of its framework: standard library only.

python -m proofs.pains.worker proofs.pains.adapters.create_agent

reads one task (JSON) from each line of standard input, and runs it in a forked process, which a tool may kill. For each
task it writes that process's id, then its exit status. Outcomes are in the task's folder, in `outcomes.json`.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from proofs.pains import tools


@dataclass(frozen=True)
class Task:
    """What one process is to do."""

    url: str
    """The model's address."""
    folder: str
    """Where the session is stored."""
    tools: list[str]
    steps: list[dict[str, Any]]
    """`{"do": method of the peer, "with": its argument, "cancel_at": tool}`."""
    limits: dict[str, int] = field(default_factory=dict)
    """What the user asks for: `steps`, `tool_timeout_s`, `tokens`, `deadline_s`, `parallel`, `history`."""
    approve: list[str] = field(default_factory=list)
    """Tools that need a person's approval."""
    edits: list[tuple[str, str]] = field(default_factory=list)
    """Faults to put into the adapter: text to replace in its source, and its replacement."""
    opt_in: bool = False
    """Whether to use settings that are off by default."""

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The tools as functions."""
        return [getattr(tools, name) for name in self.tools]


@dataclass
class Reply:
    """What the user gets for one step."""

    answer: str = ""
    tokens: int = 0
    """Tokens of all model calls of the step, as the framework counts them."""
    cut_off: str = ""
    """What the framework reports of an answer that is not complete."""
    waiting: list[dict[str, Any]] = field(default_factory=list)
    """Arguments of the calls that wait for an approval."""


async def perform(peer: Any, step: dict[str, Any]) -> dict[str, Any]:
    """One step, as an outcome: a reply's fields and `error`, which is empty after a success."""
    method = getattr(peer, step["do"])
    work = asyncio.ensure_future(method(*([step["with"]] if "with" in step else [])))
    if "cancel_at" in step:
        while not work.done() and not any(each["tool"] == step["cancel_at"] for each in tools.effects()):
            await asyncio.sleep(0.02)
        # The call has started; what its framework does at once is part of the run.
        await asyncio.sleep(0.3)
        work.cancel()
    try:
        return {**asdict(await work), "error": ""}
    except BaseException as error:  # noqa: BLE001 - a framework may raise anything
        traceback.print_exc()
        return {**asdict(Reply()), "error": f"{type(error).__name__}: {error}"[:2000]}


async def run(adapter: ModuleType, task: Task) -> list[dict[str, Any]]:
    """All steps of a task, on one agent."""

    async def answer_pings() -> None:
        while not (tools.FOLDER / "ping").exists():
            await asyncio.sleep(0.02)
        (tools.FOLDER / "pong").touch()

    pings = asyncio.create_task(answer_pings())
    peer = adapter.Peer(task)
    outcomes: list[dict[str, Any]] = []
    for step in task.steps:
        if step["do"] == "together":
            outcomes += await asyncio.gather(*(perform(peer, each) for each in step["steps"]))
        else:
            outcomes.append(await perform(peer, step))
    pings.cancel()
    return outcomes


def edited(adapter: ModuleType, edits: list[tuple[str, str]]) -> ModuleType:
    """The adapter with faults in its source.

    Raises:
        ValueError: A text to replace does not occur once.
    """
    source = Path(str(adapter.__file__)).read_text()
    for before, after in edits:
        if source.count(before) != 1:
            raise ValueError(f"The source has {before!r} {source.count(before)} times, not once.")
        source = source.replace(before, after)
    made = ModuleType(adapter.__name__)
    exec(source, made.__dict__)
    return made


def in_child(adapter: ModuleType, task: Task) -> None:
    """Run a task and end the process, whatever threads the framework has left."""
    log = os.open(Path(task.folder) / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tools.FOLDER = Path(task.folder)
    status = 0
    try:
        outcomes = asyncio.run(run(edited(adapter, task.edits) if task.edits else adapter, task))
        (tools.FOLDER / "outcomes.json").write_text(json.dumps(outcomes))
    except BaseException:  # noqa: BLE001 - the status reports it
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve tasks until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    adapter = importlib.import_module(sys.argv[1])
    about = {name: getattr(adapter, name) for name in ("PACKAGE", "LACKS", "OPT_IN")}
    version = importlib.metadata.version(adapter.PACKAGE) if adapter.PACKAGE else ""
    answers.write(json.dumps({**about, "version": version}) + "\n")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            in_child(adapter, Task(**json.loads(line)))
        answers.write(f"{child}\n")
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")


if __name__ == "__main__":
    main()
