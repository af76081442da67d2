"""The command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.warm_process import WarmProcess

WITHIN_S = 180


def run_cli(
    folder: Path, *arguments: str, script: list[str] | None = None, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `graph-agent` in a folder, with the replies of a scripted model if given; `given` is its standard input.

    Variables of the interpreter in `environment` start a new interpreter; otherwise, the process is a warm one.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    scripted = {"DEBUG_MOCK_RESPONSES": json.dumps(script)} if script is not None else {}
    variables = {**inherited, **scripted, **environment}
    if any(name.startswith("PYTHON") for name in environment):
        return subprocess.run(
            [sys.executable, "-m", "graph_agent.cli", *arguments],
            cwd=folder,
            env=variables,
            input=given,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    with tempfile.TemporaryDirectory() as temporary:
        given_file, out, errors = (Path(temporary, name) for name in ("in", "out", "errors"))
        given_file.write_text(given)
        process = WarmProcess(arguments, folder, variables, (given_file, out, errors))
        try:
            status = process.wait(WITHIN_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, status, out.read_text(), errors.read_text())
