"""Commands that need no model load none of the modules that take long to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agents import ECHO_SCRIPT
from tests.support.cli import run_cli
from tests.support.terminal import GATED_TOOLS, agent_folder

HEAVY = ("langgraph", "langchain_core", "langchain_openai", "langsmith", "openai", "mcp", "prompt_toolkit", "fastapi")
PROGRAM = """
import sys
from graph_agent.cli.app import main
try:
    main()
finally:
    print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    [
        ["--version"],
        ["--help"],
        ["run", "--help"],
        ["sessions"],
        ["events", "s"],
        ["steer", "-s", "s", "x"],
        ["graph"],
        ["schema"],
        ["new", "x"],
    ],
    ids=" ".join,
)
def test_no_heavy_module_is_imported(tmp_path: Path, command: list[str]) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work")
    if command[0] in ("sessions", "events", "steer"):
        run_cli(folder, "run", "--session", "s", "hi", script=ECHO_SCRIPT[1:])

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(heavy=HEAVY), *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr, bool(done.stdout)) == (0, "\n", True)
