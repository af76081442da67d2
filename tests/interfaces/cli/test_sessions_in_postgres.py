"""Lists of sessions and histories in PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.postgres_server import on_postgres
from tests.support.terminal import APPROVED_TOOLS, agent_folder

WRITE = asks(("1", "write_file", {"path": "a", "text": "b"}))


@on_postgres
def test_a_session_in_postgres_is_listed_read_and_resumed(tmp_path: Path, postgres_url: str) -> None:
    folder = agent_folder(tmp_path, APPROVED_TOOLS, "write_file")
    where = ["--db", postgres_url]
    waiting = run_cli(folder, "run", "--session", "mine", "please write", *where, script=[WRITE])

    listed = run_cli(folder, "sessions", *where)
    resumed = run_cli(folder, "resume", "mine", "--approve-all", *where, script=["No more actions.", "Done."])
    events = run_cli(folder, "events", "mine", "--json", "--last", "2", *where)

    row = listed.stdout.rstrip("\n").split("\t")
    assert (waiting.returncode, row[:4], row[5], resumed.returncode, resumed.stdout) == (
        4,
        ["mine", "waiting for an answer", "1", "1"],
        "please write",
        0,
        "Done.\n",
    )
    assert [json.loads(line)["type"] for line in events.stdout.splitlines()] == ["agent_response", "status"]
