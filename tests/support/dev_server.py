"""A process of `langgraph dev`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.ports import reserved_port

ROOT = Path(__file__).parents[2]
_WITHIN_S = 180
"""Seconds in which a server must be ready; longer than a loaded machine needs."""
NOT_FOR_THE_CHILD = {"OPENAI_API_KEY", "OPENAI_BASE_URL", "DEBUG_MOCK_RESPONSES"}


@contextmanager
def dev_process(
    folder: Path, config: Path, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a server; yield its process and its address once it is ready.

    Args:
        folder: Its current folder, where it keeps threads and runs, and its `log`.
        config: The `langgraph.json`.
        environment: Further variables.
    """
    variables = {name: value for name, value in os.environ.items() if name not in NOT_FOR_THE_CHILD} | {
        "PYTHONPATH": str(ROOT),
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGGRAPH_NO_VERSION_CHECK": "1",
        "LANGSMITH_TRACING": "false",
        **environment,
    }
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "langgraph_cli", "dev", "--config", str(config), "--port", str(port)]
        options = ["--no-browser", "--no-reload", "--n-jobs-per-worker", "10"]
        with (folder / "log").open("a") as log:
            process = subprocess.Popen([*command, *options], cwd=folder, env=variables, stdout=log, stderr=log)
        try:
            _wait_until_ready(url, process, folder / "log")
            yield process, url
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/ok", trust_env=False, verify=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"langgraph dev did not come up:\n{log.read_text()[-4000:]}")
