"""The recipe of schedules and webhooks: each due time and each delivery runs once, in any number of processes."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from examples.scheduled.agent import signature, webhook
from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.warm_process import Process, start_python

PROGRAM = """
import asyncio, os, sys
from datetime import UTC, datetime
from apscheduler.triggers.interval import IntervalTrigger
from examples.scheduled.agent import SINCE, run_due
from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver

hour, dies_at = int(sys.argv[1]), int(sys.argv[2])

def note() -> str:
    '''Note a run.'''
    with open("notes", "a") as file:
        file.write("noted\\n")
    if len(open("notes").readlines()) == dies_at:
        os._exit(9)
    return "noted"

async def main():
    async with open_saver("sqlite:///s.db") as saver:
        call = '{"tool_calls": [{"id": "c", "name": "note", "arguments": {}}]}'
        model = ScriptedChatModel([call, "Done."], cycle=True)
        agent = create_graph_agent(model, [note], checkpointer=saver)
        trigger = IntervalTrigger(hours=1, start_date=SINCE, timezone=UTC)
        now = datetime(2026, 12, 1, hour, 30, tzinfo=UTC)
        await run_due(agent, "hourly", trigger, "Note it.", lambda: now)

asyncio.run(main())
"""
SECRET = b"a secret of the sender"


def started(folder: Path, hour: int, dies_at: int = 0) -> Process:
    (folder / "program.py").write_text(PROGRAM)
    command = [str(folder / "program.py"), str(hour), str(dies_at)]
    with (folder / "log").open("ab") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log.fileno(), "stderr": log.fileno()}
        return start_python(command, cwd=folder, env={**os.environ}, **streams)


async def test_each_due_time_runs_once_in_two_processes_also_after_a_crash_and_a_stop(
    tmp_path: Path,
) -> None:
    # At 01:30, the second of two due times is cut off in the middle of its call.
    crashed = started(tmp_path, 1, dies_at=2).wait(180)
    # A stop of some hours; then two processes start at the same time.
    both = [started(tmp_path, 4), started(tmp_path, 4)]
    ended = [process.wait(180) for process in both]
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        agent = create_graph_agent(ScriptedChatModel([]), checkpointer=saver)
        session = Session(agent, "schedule-hourly")
        events, newest = await session.events(), await session.newest_input_id()
    types = [event["type"] for event in events]
    calls = [event["status"] for event in events if event["type"] == "tool_result"]

    assert (crashed, ended) == (9, [0, 0]), (tmp_path / "log").read_text()
    assert (types.count("user_message"), types.count("agent_response")) == (5, 5)
    # The call that was cut off is not repeated: its result is not known.
    assert (calls.count("unknown"), set(calls)) == (1, {"unknown", "success"})
    assert newest == "schedule:hourly:2026-12-01T04:00:00+00:00"
    assert (tmp_path / "notes").read_text().count("noted") == len(calls)


@pytest.mark.parametrize("changed", ["", "body", "timestamp", "old", "id"])
async def test_a_signed_delivery_runs_once_and_any_other_is_refused(tmp_path: Path, changed: str) -> None:
    sent = datetime(2026, 12, 1, tzinfo=UTC)
    timestamp, body = str(int(sent.timestamp())), b'{"order": 17}'
    headers = {
        "x-webhook-id": "" if changed == "id" else "delivery-1",
        "x-webhook-timestamp": f"{timestamp}0" if changed == "timestamp" else timestamp,
        "x-webhook-signature": signature(SECRET, timestamp, body),
    }
    received = datetime.fromtimestamp(sent.timestamp() + (301 if changed == "old" else 10), UTC)
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        agent = create_graph_agent(ScriptedChatModel(["Noted order 17."]), checkpointer=saver)
        application = webhook(agent, SECRET, lambda: received)
        with TestClient(application) as http:
            given = b'{"order": 18}' if changed == "body" else body
            replies = [http.post("/hook", content=given, headers=headers) for _ in range(2)]
        runs = len(await Session(agent, "webhook-delivery-1").events())

    if changed:
        assert ([reply.status_code for reply in replies], runs) == ([401, 401], 0)
    else:
        assert [reply.json() for reply in replies] == [{"answer": "Noted order 17."}] * 2
