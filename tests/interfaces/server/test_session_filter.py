"""The list of sessions is filtered, and has what each session has used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.interfaces.server.process import PARROT, serving


def test_sessions_are_filtered_by_what_they_have_done(tmp_path: Path) -> None:
    with serving(tmp_path, agent=PARROT) as served, served.http() as http:

        def ids(**query: Any) -> list[str]:
            """The sessions of a list."""
            return [each["id"] for each in http.get("/memory/summaries", params=query).json()["sessions"]]

        for id_, text in (("plain", "hello"), ("calls", '!call look_up {"key": "a"}')):
            body = {"model": "parrot", "messages": [{"role": "user", "content": text}], "metadata": {"session_id": id_}}
            http.post("/v1/chat/completions", json=body).raise_for_status()
        http.post("/sessions/plain/feedback", json={"rating": "up"}).raise_for_status()
        with_totals = http.get("/memory/summaries", params={"totals": True}).json()["sessions"]
        found = {
            "all": ids(),
            "tool": ids(tool="look_up"),
            "status": ids(status="completed"),
            "other status": ids(status="waiting"),
            "rated": ids(rated=True),
            "cost": ids(min_cost=1e9),
            "since": ids(since="2100-01-01T00:00:00Z"),
            "until": ids(until="2100-01-01T00:00:00"),
            "search": ids(search="PLAIN"),
        }
        http.delete("/sessions/calls").raise_for_status()
        after = [each["tools"] for each in http.get("/memory/summaries", params={"totals": True}).json()["sessions"]]

    assert found == {
        "all": ["calls", "plain"],
        "tool": ["calls"],
        "status": ["calls", "plain"],
        "other status": [],
        "rated": ["plain"],
        "cost": [],
        "since": [],
        "until": ["calls", "plain"],
        "search": ["plain"],
    }
    assert [each["tools"] for each in with_totals] == [["look_up"], []]
    assert all(each["tokens"] >= 0 and each["total_cost"] >= 0 for each in with_totals)
    assert after == [[]]
