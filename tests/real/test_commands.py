"""Each command of graph-agent with a real small model, as a user sets it up: two environment variables."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.server.process import serving
from tests.support.cli import run_cli
from tests.support.terminal import leave, terminal
from tests.support.warm_process import ONLY_OUR_PLUGIN, warm_python

pytestmark = pytest.mark.real
AGENT = """
name: local
description: Asks a small model on this machine.
model: openai:local
config: {max_output_tokens: 24}
db: sqlite:///sessions.db
"""
CASES = """
agent: agent.yaml
cases:
  - {name: hello, input: Hello!, expect: {calls: [], status: COMPLETED}}
"""


def environment(base_url: str) -> dict[str, Any]:
    return {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "any"}


def agent_in(folder: Path) -> Path:
    (folder / "agent.yaml").write_text(AGENT)
    return folder


def test_run_prints_an_answer_that_replay_compares_with_another_model(
    tmp_path: Path, local_server: str, small_server: str
) -> None:
    folder = agent_in(tmp_path)

    ran = run_cli(folder, "run", "--record", "-s", "s1", "--json", "Hello!", **environment(local_server))
    again = run_cli(folder, "replay", "s1", **environment(local_server))
    other = run_cli(folder, "replay", "s1", "--model", "openai:small", **environment(small_server))

    result = json.loads(ran.stdout.splitlines()[-1])["result"]
    assert (ran.returncode, result["status"], bool(result["answer"])) == (0, "COMPLETED", True), ran.stderr
    assert [(done.returncode, "Equal: 1 input" in done.stdout) for done in (again, other)] == [(0, True), (0, True)]


def test_an_exported_test_passes_without_a_model(tmp_path: Path, local_server: str) -> None:
    folder = agent_in(tmp_path)
    run_cli(folder, "run", "-s", "s1", "Hello!", **environment(local_server))
    run_cli(folder, "sessions", "export", "s1", "--test", "--out", "test_s1.py", **environment(local_server))

    tested = run_pytest(folder, "test_s1.py")

    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout


def run_pytest(folder: Path, file: str) -> subprocess.CompletedProcess[str]:
    command = [warm_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", file]
    own = {**os.environ, **ONLY_OUR_PLUGIN}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=300, check=False)


def test_eval_counts_a_case(tmp_path: Path, local_server: str) -> None:
    folder = agent_in(tmp_path)
    (folder / "cases.yaml").write_text(CASES)

    done = run_cli(folder, "eval", "cases.yaml", **environment(local_server))

    assert (done.returncode, "1 of 1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_chat_shows_an_answer(tmp_path: Path, local_server: str) -> None:
    folder = agent_in(tmp_path)

    with terminal(folder, "chat", "--session", "mine", script=None, **environment(local_server)) as chat:
        chat.expect("> ")
        chat.send("Hello!\r")
        chat.expect("tokens")
        chat.send("/quit\r")
        status = leave(chat)

    listed = run_cli(folder, "events", "mine", "--json", **environment(local_server)).stdout
    history: list[dict[str, Any]] = [json.loads(line) for line in listed.splitlines()]
    assert (status, history[-1]["type"], history[-1]["to"]) == (0, "status", "COMPLETED")


def test_the_server_has_the_page_and_streams_to_it(tmp_path: Path, local_server: str) -> None:
    agent = {"name": "local", "model": "openai:local", "config": {"max_output_tokens": 24}}
    body = {"model": "local", "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    with serving(tmp_path, agent=agent, environment=environment(local_server)) as served, served.http() as http:
        page = http.get("/")
        streamed = http.post("/v1/chat/completions", json=body, headers={"x-session-id": "s1"})
        events = http.get("/memory/sessions/s1/events").json()["events"]

    data = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: ")]
    deltas = [json.loads(each)["choices"][0]["delta"].get("content") or "" for each in data[:-1]]
    answers = [event["content"] for event in events if event["type"] == "agent_response"]
    assert (page.status_code, "<html" in page.text, data[-1], "".join(deltas)) == (200, True, "[DONE]", answers[0])
    assert len([delta for delta in deltas if delta]) > 3


def test_doctor_reports_dropped_tools_and_the_window(tmp_path: Path, local_server: str) -> None:
    done = run_cli(agent_in(tmp_path), "doctor", "--ask-model", "--json", **environment(local_server))

    found = {each["check"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert (done.returncode, found["tools"]["status"], found["window"]["text"]) == (
        0,
        "warning",
        "openai:local reads 4,096 tokens",
    )
