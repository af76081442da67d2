"""A real Arize Phoenix, which runs in an environment of its own, shows the tree of a session."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.doc_pages import ROOT
from tests.support.required import unavailable
from tests.support.terminal import GATED_TOOLS, agent_folder

pytestmark = pytest.mark.phoenix
PROGRAM = Path(os.environ.get("TEST_PHOENIX", ROOT / ".venv-phoenix/bin/phoenix"))
CANARY = "canary-7731"
TOOLS = f'def find() -> str:\n    """Find."""\n    return "{CANARY}"\n'


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def until_found(url: str) -> Any:
    """The answer of a GET, once it has data; two minutes at most."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        try:
            answer = httpx.get(url, trust_env=False)
            if answer.is_success and (not (found := answer.json() if "/v1/" in url else {}) or found.get("data")):
                return found
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError(url)


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    if not PROGRAM.exists():
        unavailable(f"{PROGRAM} is missing; make phoenix installs it.")
    ports = {"PHOENIX_PORT": str(free_port()), "PHOENIX_GRPC_PORT": str(free_port())}
    own = {"PHOENIX_HOST": "127.0.0.1", "PHOENIX_WORKING_DIR": str(tmp_path), "PHOENIX_TELEMETRY_ENABLED": "false"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "serve"], env={**os.environ, **ports, **own}, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{ports['PHOENIX_PORT']}"
    try:
        until_found(f"{url}/healthz")
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_phoenix_shows_the_tree_of_a_session_without_its_content(phoenix: str, tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS + TOOLS, "find")

    run_cli(
        folder,
        "run",
        CANARY,
        script=[asks(("1", "find", {})), f"{CANARY}."],
        GRAPH_AGENT_OTEL="true",
        OTEL_METRICS_EXPORTER="none",
        OTEL_EXPORTER_OTLP_ENDPOINT=phoenix,
    )
    found = until_found(f"{phoenix}/v1/projects/default/spans?limit=50")["data"]

    names = {span["context"]["span_id"]: span["name"].split()[0] for span in found}
    tree = [(span["name"], names.get(span["parent_id"])) for span in sorted(found, key=lambda span: span["start_time"])]
    assert (tree[1:], CANARY in str(found)) == (
        [
            ("plan", "invoke_agent"),
            ("chat scripted", "plan"),
            ("execute_tool find", "invoke_agent"),
            ("plan", "invoke_agent"),
            ("chat scripted", "plan"),
        ],
        False,
    )
