"""Runs scenarios against an adapter, each task in a process forked from one worker per adapter."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from proofs.pains.scenario import NEEDS, Evidence, Scenario
from proofs.pains.stub import Stub

ROOT = Path(__file__).parents[2]
HANG_S = 30.0
"""Seconds one process of a scenario may take; a healthy one takes less than one."""
STARTUP_S = 180.0
ENDED = ""
Edits = Sequence[tuple[str, str]]
"""Faults to put into an adapter: text to replace in its source, and its replacement."""


@dataclass(frozen=True)
class Verdict:
    """The result of one scenario."""

    kind: Literal["pass", "fail", "n/a"]
    seen: str = ""
    """What the user suffered, or what the framework does not have."""


class Worker:
    """A process in an adapter's environment that runs tasks; it ends with the `with` block."""

    def __init__(self, python: Path, module: str) -> None:
        self._command = [str(python), "-m", "proofs.pains.worker", module]
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Worker:
        # No framework is to send telemetry, or to read a key or a proxy of this machine.
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
        quiet = {
            "OPENAI_API_KEY": "sk-stub",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "OTEL_SDK_DISABLED": "true",
            "AGNO_TELEMETRY": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**kept, **quiet},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        about = self._next(STARTUP_S)
        if about == ENDED:
            raise RuntimeError(f"The worker did not start; run it to see why: {' '.join(self._command)}")
        self.about = json.loads(about)
        """`PACKAGE`, its `version`, `LACKS` and `OPT_IN` of the adapter."""
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, task: Mapping[str, Any]) -> bool:
        """Run one task; False if it hung and was ended.

        Raises:
            RuntimeError: The adapter could not build its agent, or broke.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        child = int(self._next(STARTUP_S))
        try:
            status = self._next(HANG_S)
        except queue.Empty:
            os.kill(child, signal.SIGKILL)
            self._next(HANG_S)
            return False
        if int(status) > 0:
            log = Path(task["folder"]) / "log.txt"
            raise RuntimeError(f"The adapter broke: {log.read_text()[-2000:]}")
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put(ENDED)

    def _next(self, timeout: float) -> str:
        return self._lines.get(timeout=timeout)


def observe(worker: Worker, scenario: Scenario, *, opt_in: bool = False, edits: Edits = ()) -> Evidence:
    """Run all processes of a scenario."""
    folder = Path(tempfile.mkdtemp(prefix="pains-"))
    outcomes: list[Mapping[str, Any]] = []
    stored: list[int] = []
    hung = False
    try:
        with Stub(scenario.model) as stub:
            for steps in scenario.processes:
                task = {
                    "url": stub.url,
                    "folder": str(folder),
                    "tools": scenario.tools,
                    "steps": steps,
                    "limits": dict(scenario.limits),
                    "approve": scenario.approve,
                    "opt_in": opt_in,
                    "edits": edits,
                }
                (folder / "outcomes.json").unlink(missing_ok=True)
                hung = not worker.run(task)
                outcomes += _json(folder / "outcomes.json")
                stored.append(_bytes(folder))
                if hung:
                    break
        lines = folder / "effects.jsonl"
        effects = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        if "PAINS_LOG" in os.environ and (folder / "log.txt").exists():
            shutil.copy(folder / "log.txt", os.environ["PAINS_LOG"])
        return Evidence(outcomes, stub.requests, effects, stored, hung, stub.refused)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judge(worker: Worker, scenario: type[Scenario], *, opt_in: bool = False, edits: Edits = ()) -> Verdict:
    """Run a scenario, and check what was seen."""
    if missing := sorted(scenario.needs.intersection(worker.about["LACKS"])):
        return Verdict("n/a", f"It does not have {' and '.join(NEEDS[need] for need in missing)}.")
    instance = scenario()
    seen = instance.check(observe(worker, instance, opt_in=opt_in, edits=edits))
    return Verdict("pass") if seen is None else Verdict("fail", seen)


def _json(file: Path) -> list[Mapping[str, Any]]:
    read: list[Mapping[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return read


def _bytes(folder: Path) -> int:
    """Bytes of the session, without what the scenario itself writes."""
    own = {"effects.jsonl", "log.txt", "outcomes.json"}
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name not in own)
