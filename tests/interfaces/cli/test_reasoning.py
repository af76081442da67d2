"""The model's reasoning on a terminal and in JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import run_cli
from tests.support.terminal import leave, terminal

AGENT = "name: thinker\nmodel: my_model:make\ndb: 'memory:'\n"
MODEL = """
from langchain_core.messages import AIMessage
from graph_agent import ScriptedChatModel

def make():
    text = "One is odd.\\nTwo is even, and so is every number that ends in 0 or 8."
    thought = {"type": "reasoning", "reasoning": text}
    return ScriptedChatModel([AIMessage([thought, {"type": "text", "text": "Two."}])], cycle=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "my_model.py").write_text(MODEL)
    return tmp_path


def test_a_conversation_folds_the_reasoning_and_shows_it_on_request(folder: Path) -> None:
    with terminal(folder, "chat", script=None) as chat:
        chat.expect_exact("/help lists")
        chat.sendline("/reasoning")
        chat.expect_exact("The model has shown no reasoning.")
        chat.sendline("Which number is even?")
        chat.expect_exact("thought, 68 characters: One is odd. Two is even, and so is every")
        chat.expect_exact("…")
        chat.expect_exact("Two.")
        chat.sendline("/reasoning")
        chat.expect_exact("that ends in 0 or 8.")
        chat.sendline("/quit")
        status = leave(chat)

    assert status == 0


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], ["Two."]),
        (["--reasoning"], ["  One is odd.", "  Two is even, and so is every number that ends in 0 or 8.", "Two."]),
    ],
    ids=["by default", "asked for"],
)
def test_a_run_prints_the_reasoning_if_asked_for(folder: Path, options: list[str], printed: list[str]) -> None:
    done = run_cli(folder, "run", *options, "Which number is even?")

    assert (done.returncode, done.stdout.splitlines()) == (0, ["", "> Which number is even?", *printed])


def test_json_lines_have_the_reasoning_if_asked_for(folder: Path) -> None:
    done = run_cli(folder, "run", "--json", "--reasoning", "Which number is even?")

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    thoughts = [line for line in lines if line["type"] == "reasoning"]
    tokens = {line["message_id"] for line in lines if line["type"] == "token"}
    assert ("".join(line["text"] for line in thoughts), {line["message_id"] for line in thoughts}) == (
        "One is odd.\nTwo is even, and so is every number that ends in 0 or 8.",
        tokens,
    )
