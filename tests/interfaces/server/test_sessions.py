"""Server sessions: over the chat APIs, and controlled over the session routes."""

from __future__ import annotations

import concurrent.futures
import json
import socket
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.interfaces.server.process import PARROT, Served, serving
from tests.support.chat_client import CHAT, answer, body, chat, events, wait_for_event


def test_only_new_messages_are_added(served: Served) -> None:
    with served.http() as http:
        first = chat(http, "grows", "one")
        # A client that sends everything, one that sends its newest words only, and one by the request's metadata.
        chat(http, "grows", "one", {"role": "assistant", "content": answer(first)}, "two")
        chat(http, "grows", "three")
        last = http.post(CHAT, json=body("four", metadata={"session_id": "grows"}))
        inputs = [event["content"] for event in events(http, "grows", type="user_message")]

    assert (answer(last), inputs) == ("You said: one / two / three / four", ["one", "two", "three", "four"])
    assert first.headers["x-session-id"] == "grows"


def test_a_sent_history_starts_the_session(served: Served) -> None:
    with served.http() as http:
        last = chat(http, "brought", "one", {"role": "assistant", "content": "yes"}, "two")

    assert answer(last) == "You said: one / two"


def test_the_history_is_read_by_type_and_from_a_place_on(served: Served) -> None:
    with served.http() as http:
        chat(http, "read", '!call look_up {"key": "k"}')
        everything = events(http, "read")
        some = events(http, "read", type=["tool_call", "tool_result"])
        later = events(http, "read", after=everything[-2]["seq"])
        info = http.get("/sessions/read").json()

    kinds = ["user_message", "status", "plan", "tool_call", "tool_result", "plan", "agent_response", "status"]
    assert [event["type"] for event in everything] == kinds
    assert ([event["type"] for event in some], later) == (["tool_call", "tool_result"], everything[-1:])
    assert {**info, "answer": ""} == {
        "id": "read",
        "status": "COMPLETED",
        "stop_reason": "completed",
        "answer": "",
        "events": 8,
        "pending": [],
        "waiting": None,
        "activity": "idle",
        "interrupts": [],
    }


def test_the_history_can_be_followed(served: Served) -> None:
    with served.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        chat(http, "followed", "one")
        with http.stream("GET", "/memory/sessions/followed/events", params={"follow": True, "after": 2}) as stream:
            second = pool.submit(chat, http, "followed", "two")
            seen: list[Any] = []
            for line in stream.iter_lines():
                seen += [json.loads(line[6:])] if line.startswith("data: ") else []
                if len(seen) == 5:
                    break
        second.result()

    kinds = ["agent_response", "status", "user_message", "status", "plan"]
    assert [(event["seq"], event["type"]) for event in seen] == list(enumerate(kinds, 3))


def test_a_session_is_steered_and_followed_up_while_it_works(served: Served, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with served.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(chat, http, "steered", f'!call wait_for {{"file": "{go}"}}')
        wait_for_event(http, "steered", "tool_call")
        second = chat(http, "steered", "me too")
        deleted = http.delete("/sessions/steered")
        accepted = [
            http.post("/sessions/steered/steer", json={"text": "Be quick."}),
            http.post("/sessions/steered/follow_up", json={"text": "And then?"}),
        ]
        go.touch()
        first = running.result()
        wait_for_event(http, "steered", "user_message", 2)
        kinds = [event["type"] for event in events(http, "steered", type=["steering", "user_message"])]

    assert ([one.status_code for one in accepted], second.status_code, deleted.status_code) == ([202, 202], 429, 409)
    assert ("Be quick." in first.text, kinds) == (True, ["user_message", "steering", "user_message"])


def test_a_session_is_aborted(served: Served, tmp_path: Path) -> None:
    with served.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(chat, http, "aborted", f'!call wait_for {{"file": "{tmp_path / "never"}"}}')
        wait_for_event(http, "aborted", "tool_call")
        accepted = http.post("/sessions/aborted/abort")
        status = running.result().status_code
        info = http.get("/sessions/aborted").json()
        again = http.post("/sessions/aborted/abort").json()

    assert (accepted.json(), status, info["status"], again) == (
        {"accepted": True},
        200,
        "ABORTED",
        {"accepted": False},
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_aborts_its_session(served: Served, tmp_path: Path, stream: bool) -> None:
    session = f"left-{stream}"
    content = json.dumps(body(f'!call wait_for {{"file": "{tmp_path / "never"}"}}', stream=stream)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-session-id: {session}\r\ncontent-type: application/json\r\n"
    host, port = served.url.removeprefix("http://").split(":")
    with served.http() as http:
        with socket.create_connection((host, int(port))) as leaving:
            leaving.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            wait_for_event(http, session, "tool_call")
        while http.get(f"/sessions/{session}").json()["status"] == "RUNNING":
            time.sleep(0.01)
        status = http.get(f"/sessions/{session}").json()["status"]

    assert status == "ABORTED"


def test_a_session_is_resumed_with_the_result_that_it_waits_for(served: Served, openai_client: openai.OpenAI) -> None:
    paint: Any = [{"type": "function", "function": {"name": "paint"}}]
    openai_client.chat.completions.create(
        **body('!call paint {"color": "red"}'), tools=paint, extra_headers={"X-Session-Id": "resumed"}
    )
    with served.http() as http:
        waiting = http.get("/sessions/resumed").json()
        early = http.post("/sessions/resumed/resume")
        done = http.post("/sessions/resumed/resume", json={"answer": {"content": "painted", "status": "success"}})
        late = http.post("/sessions/resumed/resume")

    [asked] = waiting["interrupts"]
    assert (waiting["status"], asked["value"]["name"], asked["value"]["arguments"]) == (
        "RUNNING",
        "paint",
        {"color": "red"},
    )
    assert (done.json()["status"], done.json()["answer"].endswith("paint said: painted")) == ("COMPLETED", True)
    assert [early.status_code, late.status_code] == [409, 409]


def test_sessions_are_listed_in_pages(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        for name in ("first", "second", "third"):
            chat(http, name, "hello")
        pages = [
            http.get(f"/memory/sessions{query}").json().get("sessions")
            for query in ("", "?limit=2", "?limit=2&after=second", "?after=first", "?after=none")
        ]

    assert pages == [["third", "second", "first"], ["third", "second"], ["first"], [], None]


def test_a_deleted_session_is_gone(served: Served) -> None:
    with served.http() as http:
        chat(http, "gone", "one")
        deleted = http.delete("/sessions/gone").status_code
        after = [http.get("/sessions/gone"), http.delete("/sessions/gone"), http.post("/sessions/gone/abort")]
        listed = http.get("/memory/sessions").json()["sessions"]

    assert (deleted, [one.status_code for one in after], "gone" in listed) == (204, [404, 404, 404], False)


def test_a_new_session_receives_no_notes_of_a_deleted_one(served: Served) -> None:
    with served.http() as http:
        chat(http, "again", "one")
        for what in ("steer", "follow_up"):
            http.post(f"/sessions/again/{what}", json={"text": what})
        http.delete("/sessions/again")
        new = chat(http, "again", "two")

    assert answer(new) == "You said: two"


def test_metrics_count_runs_steps_and_tools(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        http.post(CHAT, json=body('!call look_up {"key": "k"}'))
        http.post(CHAT, json=body("!fail auth"))
        lines = http.get("/metrics").text.splitlines()
        ready = http.get("/ready")

    counted = {line for line in lines if not line.startswith("#") and "_created" not in line and "_sum" not in line}
    assert counted >= {
        'graph_agent_runs_total{status="COMPLETED"} 1.0',
        'graph_agent_runs_total{status="FAILED"} 1.0',
        "graph_agent_steps_total 2.0",
        "graph_agent_iterations_total 1.0",
        'graph_agent_tool_seconds_count{status="success",tool="look_up"} 1.0',
        "graph_agent_requests_under_way 0.0",
    }
    checks = {"server": "ok", "model": "auth", "database": "ok"}
    assert (ready.status_code, ready.json()) == (503, {"ready": False, "checks": checks})


def test_recorded_requests_are_listed_only_if_they_are_asked_for(tmp_path: Path) -> None:
    with (
        serving(tmp_path, agent={**PARROT, "config": {"record_requests": True}}) as recording,
        recording.http() as http,
    ):
        chat(http, "seen", "one")
        types = [[event["type"] for event in events(http, "seen", **only)] for only in ({}, {"type": "model_request"})]

    assert ["model_request" in types[0], set(types[1])] == [False, {"model_request"}]
