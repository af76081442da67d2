"""Feedback on answers over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.interfaces.server.process import Served, serving
from tests.support.chat_client import chat, events


def test_an_answer_is_rated_over_http(served: Served) -> None:
    with served.http() as http:
        chat(http, "rated", "one")
        made = http.post("/sessions/rated/feedback", json={"rating": "up", "note": "Good.", "answer": 3})
        event = made.json()["event"]
        listed = next(each for each in http.get("/memory/summaries").json()["sessions"] if each["id"] == "rated")

        assert events(http, "rated")[-1] == event
    chosen = {name: event[name] for name in ("type", "answer", "rating", "note", "by", "session_id")}
    assert (made.status_code, chosen, listed["thumbs_up"], listed["thumbs_down"]) == (
        201,
        {"type": "feedback", "answer": 3, "rating": "up", "note": "Good.", "by": "user", "session_id": "rated"},
        1,
        0,
    )


def test_unknown_answers_sessions_and_ratings_are_refused_over_http(served: Served) -> None:
    with served.http() as http:
        chat(http, "unrated", "one")
        path = "/sessions/unrated/feedback"
        sent: list[tuple[str, dict[str, Any]]] = [
            (path, {"rating": "up", "answer": "x"}),
            ("/sessions/none/feedback", {"rating": "up"}),
            (path, {"rating": "good"}),
            (path, {"rating": "up", "by": "someone else"}),
        ]
        replies = [http.post(to, json=body) for to, body in sent]

    assert [reply.status_code for reply in replies] == [404, 404, 400, 400]
    assert replies[0].json()["error"] == (
        "Session 'unrated' has no answer 'x'; its answers are the events 3. Name an answer by the seq of its "
        "agent_response event, the id of its input, or the id of its message."
    )


def test_the_history_has_the_name_of_the_key_that_rated(tmp_path: Path) -> None:
    keys = "ana:0123456789abcdef,ben:fedcba9876543210"
    with serving(tmp_path, environment={"GRAPH_AGENT_API_KEYS": keys}) as server:
        ana, ben = ({"Authorization": f"Bearer {key}"} for key in ("0123456789abcdef", "fedcba9876543210"))
        with server.http(headers=ana) as http:
            chat(http, "own", "one")
            event = http.post("/sessions/own/feedback", json={"rating": "down"}).json()["event"]
        with server.http(headers=ben) as http:
            other = http.post("/sessions/own/feedback", json={"rating": "up"})

    assert (event["by"], event["session_id"], other.status_code) == ("ana", "own", 404)
