"""Feedback on answers over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.interfaces.server.process import PARROT, Served, serving
from tests.support.chat_client import body, chat, events


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
        "agent_response event, the id of its input, the id of its message, or the id with which an API returned it "
        "(chatcmpl-…, resp_…, msg_…)."
    )


def test_an_answer_is_rated_by_the_id_that_each_api_returned(tmp_path: Path) -> None:
    asking = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"]}}
    call = '!call look_up {"key": "k"}'
    with serving(tmp_path, agent=asking) as served, served.http() as http:

        def rated(session: str, id_: str) -> int:
            """The rated answer's event, by the id that a client has."""
            made = http.post(f"/sessions/{session}/feedback", json={"rating": "up", "answer": id_})
            return int(made.raise_for_status().json()["event"]["answer"])

        def respond(text: Any, previous: str | None = None) -> dict[str, Any]:
            """A stored response."""
            sent = {"model": "parrot", "input": text, "previous_response_id": previous}
            made: dict[str, Any] = http.post("/v1/responses", json=sent).raise_for_status().json()
            return made

        ids = [chat(http, "chat", text).json()["id"] for text in ("same", "same", call, "approve")]
        keyed: dict[str, Any] = {"headers": {"X-Session-Id": "chat", "Idempotency-Key": "k1"}, "json": body("once")}
        ids += [http.post("/v1/chat/completions", **keyed).json()["id"] for _ in range(2)]
        streamed = chat(http, "chat", "streamed", stream=True).text.split('"id":"')[1].split('"')[0]
        messages = [{"role": "user", "content": "hello"}]
        sent = {"model": "parrot", "max_tokens": 100, "messages": messages}
        claude = http.post("/v1/messages", json=sent, headers={"X-Session-Id": "claude"}).json()["id"]
        first = respond(call)
        (asked,) = (item for item in first["output"] if item["type"] == "mcp_approval_request")
        approved = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
        second = respond([approved], first["id"])
        third = respond("again", second["id"])
        item = next(item["id"] for item in third["output"] if item["type"] == "message")
        answers = {
            name: [seq["seq"] for seq in events(http, name, type="agent_response")]
            for name in ("chat", "claude", first["id"])
        }
        found = {
            "chat": [rated("chat", each) for each in (*ids, streamed)],
            "claude": [rated("claude", claude)],
            first["id"]: [rated(first["id"], each) for each in (second["id"], third["id"], item)],
        }

    one, two, three, four, five = answers["chat"]
    assert found == {
        "chat": [one, two, three, three, four, four, five],
        "claude": answers["claude"],
        first["id"]: [answers[first["id"]][0], *[answers[first["id"]][1]] * 2],
    }
    assert len({*ids}) == len(ids) - 1, "only the repeated request has an id of an earlier one"


def test_a_case_without_an_answer_is_of_the_newest_rated_one(served: Served) -> None:
    with served.http() as http:
        for text in ("one", "two"):
            chat(http, "cases", text)
        unrated = http.get("/sessions/cases/case").json()["name"]
        http.post("/sessions/cases/feedback", json={"rating": "up", "answer": 3}).raise_for_status()
        rated = http.get("/sessions/cases/case").json()["name"]
        refused = http.get("/sessions/cases/case", params={"answer": 8}).status_code

    assert (unrated, rated, refused) == ("cases-8", "cases-3", 404)


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
