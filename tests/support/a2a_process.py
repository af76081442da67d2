"""`graph-agent a2a` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.server.process import PARROT, ROOT

AGENT = {**PARROT, "config": {"model_retries": 0, "finalize": "compose"}}


@contextmanager
def a2a_process(folder: Path, *options: str, agent: dict[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """`graph-agent a2a` in a process of its own; yield its address and the process."""
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump(agent or AGENT))
    command = [sys.executable, "-m", "graph_agent.cli", "a2a", "--config", str(file), "--port", "0", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"listens at (\S+)", line)
            assert found, (line, (folder / "log").read_text())
            yield found[1], process
        finally:
            process.kill()
