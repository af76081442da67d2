"""The recipe of one service: its compose file is valid, and the command of the service outlives a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.containers import Container, Running, of_compose, started, wait_until_ready
from tests.support.doc_pages import ROOT, read_blocks

FOLDER = ROOT / "examples/compose"
COMPOSE = FOLDER / "compose.yaml"
SERVICE: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["agent"]
KEY = "a-key-of-the-shop-1"
ORDER = {"tool_calls": [{"id": "c1", "name": "order", "arguments": {"article": "pot", "count": 3}}]}


def service(*replies: Any) -> Container:
    return of_compose("agent", {"AGENT_KEY": KEY, "DEBUG_MOCK_RESPONSES": json.dumps(replies)}, COMPOSE)


def is_healthy(running: Running) -> bool:
    """Whether the service's health check accepts the process."""
    _, *command = [word.replace(":8000", f":{running.port}") for word in SERVICE["healthcheck"]["test"]]
    return running.run(*command) == 0


def ask(http: httpx.Client, text: str) -> str:
    body = {"model": "shop", "messages": [{"role": "user", "content": text}]}
    reply = http.post("/v1/chat/completions", json=body, headers={"x-session-id": "s1"}).raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


def test_the_compose_file_fits_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_database_is_in_the_volume_and_one_key_is_required() -> None:
    environment = service().environment

    assert environment["GRAPH_AGENT_API_KEYS"] == f"shop:{KEY}"
    # Relative, and so in the image's working folder.
    assert (environment["GRAPH_AGENT_DB"], SERVICE["volumes"][0]) == ("sqlite:///sessions.db", "sessions:/data")


def test_a_session_and_its_question_outlive_a_kill_of_the_service(tmp_path: Path) -> None:
    with started(service("We have pots.", ORDER), tmp_path) as server:
        ready = wait_until_ready(server)["ready"]
        with server.http() as http:
            refused = http.get("/sessions/s1").status_code
        with server.http(KEY) as http:
            first = ask(http, "What do we have?")
            ask(http, "Order three pots.")
        healthy = is_healthy(server)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        dead = is_healthy(server)
    with started(service("Three pots are ordered."), tmp_path) as server:
        wait_until_ready(server)
        with server.http(KEY) as http:
            [question] = http.get("/sessions/s1").json()["interrupts"]
            answer = {question["id"]: {"decisions": [{"type": "approve"}]}}
            last = http.post("/sessions/s1/resume", json={"answer": answer}).json()["answer"]
            events = http.get("/memory/sessions/s1/events").json()["events"]

    assert (ready, refused, healthy, dead) == (True, 401, True, False)
    assert (first, last) == ("We have pots.", "Three pots are ordered.")
    assert [each["content"] for each in events if each["type"] in ("user_message", "tool_result")] == [
        "What do we have?",
        "Order three pots.",
        "Ordered 3 of pot.",
    ]


def test_the_page_shows_the_files() -> None:
    shown = [block.text for block in read_blocks(ROOT / "docs/recipes/compose.md")]

    assert [(FOLDER / name).read_text(encoding="utf-8") for name in ("compose.yaml", "agent.yaml", "shop.py")] == shown[
        :3
    ]
