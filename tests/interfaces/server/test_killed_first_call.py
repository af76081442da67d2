"""A session whose process was killed in the first model call of an input, at the doors of a server."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import AnyUrl

from tests.interfaces.server.process import serving
from tests.support.chat_client import events
from tests.support.killed_first_call import SESSION, killed
from tests.support.mcp_client import connected


async def test_every_door_shows_the_input_that_a_kill_interrupted(tmp_path: Path) -> None:
    await killed(f"sqlite:///{tmp_path / 'sessions.db'}", 2)

    with serving(tmp_path) as served:
        with served.http() as http:
            [listed] = http.get("/sessions").json()["sessions"]
            info = http.get(f"/sessions/{SESSION}").json()
            stored = events(http, SESSION)
        async with connected(served.url) as client:
            [content] = (await client.read_resource(AnyUrl(f"graph-agent://sessions/{SESSION}"))).contents
        resource = json.loads(getattr(content, "text", ""))

    last = [(event["type"], event.get("content")) for event in stored][-2:]
    assert (
        (listed["status"], listed["activity"]),
        (info["status"], info["activity"], info["answer"], info["events"]),
        last,
        (resource["status"], resource["events"]),
    ) == (
        ("RUNNING", "interrupted"),
        ("RUNNING", "interrupted", "", len(stored)),
        [("user_message", "question 2"), ("status", None)],
        ("RUNNING", stored),
    )
