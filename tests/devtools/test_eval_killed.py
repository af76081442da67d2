"""An evaluation that is killed again and again runs each case once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

from tests.support.cli import run_cli

AGENT = """
name: booker
model: "my_agent:model"
tools: ["my_agent:book"]
config: {effect_ledger: true}
"""
MODULE = '''
import json
import os
import signal
from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from graph_agent import ScriptedChatModel, idempotency_key

count = 0


def point():
    """Kill the process at its n-th point, which is given; 0 for never."""
    global count
    count += 1
    if count == int(os.environ["KILLED_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)


def append(file, text):
    with Path(file).open("a") as lines:
        lines.write(text + "\\n")


@tool
def book(room: str) -> str:
    """Book a room."""
    point()  # in the effect ledger, and not run
    append("booked", f"{room} {idempotency_key()}")
    point()  # run, and without a result
    return f"booked {room}"


book.metadata = {"effect": "write", "idempotent": True}


class Books(ScriptedChatModel):
    """Plans one call, and answers when it has a result."""

    def _reply(self, messages, stop, kwargs):
        point()
        room = next(message.text for message in messages if message.type == "human")
        if any(message.type == "tool" for message in messages):
            append("answered", room)
            return AIMessage("Booked.")
        return AIMessage("", tool_calls=[{"id": "1", "name": "book", "args": {"room": room}}])


def model():
    return Books([])
'''
CASES = 14


def test_an_evaluation_killed_ten_times_runs_each_case_once(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "my_agent.py").write_text(MODULE)
    rooms = [f"room {number}" for number in range(CASES)]
    expect = {"calls": [{"name": "book", "status": "success"}], "answer": {"equals": "Booked."}}
    cases = [{"name": room, "input": room, "expect": expect} for room in rooms]
    (tmp_path / "cases.yaml").write_text(json.dumps({"agent": "agent.yaml", "cases": cases}))
    command = ("eval", "cases.yaml", "--json", "-n", "2")

    # A case has four points: two requests, and two in its call. So each run advances, and ends within another point.
    kills = [run_cli(tmp_path, *command, KILLED_AT=str(3 + number % 5)).returncode for number in range(10)]
    done = run_cli(tmp_path, *command, KILLED_AT="0")
    again = run_cli(tmp_path, *command, KILLED_AT="1")

    booked = [line.rpartition(" ") for line in (tmp_path / "booked").read_text().splitlines()]
    keys = Counter(room for room, _, _ in {*booked})
    assert (kills, done.returncode, again.returncode) == ([-signal.SIGKILL] * 10, 0, 0), done.stdout + done.stderr
    assert (keys, sorted({*(tmp_path / "answered").read_text().splitlines()})) == (Counter(rooms), sorted(rooms))
    assert json.loads(done.stdout)["agents"][0]["passed"] == CASES
