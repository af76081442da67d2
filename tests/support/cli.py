"""The command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def run_cli(
    folder: Path, *arguments: str, script: list[str] | None = None, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `graph-agent` in a folder, with the replies of a scripted model if given; `given` is its standard input."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    scripted = {"DEBUG_MOCK_RESPONSES": json.dumps(script)} if script is not None else {}
    return subprocess.run(
        [sys.executable, "-m", "graph_agent.cli", *arguments],
        cwd=folder,
        env={**inherited, **scripted, **environment},
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
