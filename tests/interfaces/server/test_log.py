"""The log of server processes: the steps of a run if configured, in every worker."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from tests.interfaces.server.process import PARROT, eventually, serving
from tests.support.chat_client import chat


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [["-v"], ["--log-level", "INFO"], ["-v", "--workers", "2"]], ids=" ".join)
def test_run_steps_are_logged_if_configured(tmp_path: Path, options: list[str]) -> None:
    with serving(tmp_path, *options) as server, server.http() as http:
        chat(http, "s1", "hello")
        log = server.log.read_text()

    assert "INFO graph_agent.nodes.plan: Agentic iteration 1/5" in log


def test_without_an_option_the_steps_of_a_run_are_not_logged(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        chat(http, "s1", "hello")
        log = server.log.read_text()

    assert "Agentic iteration" not in log


HANGING = {**PARROT, "tools": ["hanging:hang"], "model": "hanging:make"}
MODULE = """
import pathlib, threading
from graph_agent import ScriptedChatModel

def hang() -> str:
    "Never return."
    pathlib.Path(__file__).with_name("hangs").touch()
    threading.Event().wait()

def make():
    return ScriptedChatModel(['{"tool_calls": [{"id": "1", "name": "hang", "arguments": {}}]}'])
"""


def test_a_server_stops_in_its_time_while_blocking_code_hangs(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(MODULE)
    with (
        serving(tmp_path, "--set", "drain_s=1", agent=HANGING) as server,
        server.http() as http,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(chat, http, "s1", "go")
        eventually((tmp_path / "hangs").exists)
        server.term()
        server.process.wait(60)
        answer = asked.result(30)

    assert answer.json()["error"]["code"] == "server_stopping"
