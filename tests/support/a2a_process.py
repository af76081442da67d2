"""`graph-agent a2a` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.interfaces.server.process import PARROT, ROOT, UP_WITHIN_S, eventually
from tests.support.warm_process import Process, start_python

AGENT = {**PARROT, "config": {"model_retries": 0, "finalize": "compose"}}


@contextmanager
def a2a_process(folder: Path, *options: str, agent: dict[str, Any] | None = None) -> Iterator[tuple[str, Process]]:
    """`graph-agent a2a` in a process of its own; yield its address and the process."""
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump(agent or AGENT))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = folder / "out"
    with out.open("w") as stdout, (folder / "log").open("a") as log:
        process = start_python(
            ["graph_agent.cli", "a2a", "--config", str(file), "--port", "0", *options],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout.fileno(),
            stderr=log.fileno(),
        )
    try:
        eventually(lambda: out.read_text().endswith("\n") or process.poll() is not None, within_s=UP_WITHIN_S)
        found = re.search(r"listens at (\S+)", out.read_text())
        assert found, (out.read_text(), (folder / "log").read_text())
        yield found[1], process
    finally:
        process.kill()
        process.wait()
