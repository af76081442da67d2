"""Forks of sessions over HTTP: they record the calls that they leave out, and a reviewer reads about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interfaces.server.process import PARROT, Served, serving
from tests.support.chat_client import chat, events

CALL = '!call look_up {"key": "k"}'
KEY = "ana-has-this-long-key"
AGENT = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"]}}


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environment = {"GRAPH_AGENT_API_KEYS": f"ana:{KEY}"}
    with serving(tmp_path_factory.mktemp("forks"), agent=AGENT, environment=environment, up="/health") as server:
        yield server


@pytest.fixture
def http(asking: Served) -> Iterator[Any]:
    with asking.http(headers={"authorization": f"Bearer {KEY}"}) as client:
        yield client


def looked_up(http: Any, session: str) -> dict[str, Any]:
    """Have an approved call run in a session; return the call as a fork before it leaves it out."""
    chat(http, session, CALL)
    http.post(f"/sessions/{session}/resume", json={"answer": {"decisions": [{"type": "approve"}]}})
    [call] = events(http, session, type="tool_call")
    return {"id": call["id"], "name": "look_up", "arguments": {"key": "k"}, "step": 1, "status": "success"}


def question(http: Any, session: str) -> Any:
    """The description of the call that waits in a session."""
    [waiting] = http.get(f"/sessions/{session}").json()["interrupts"]
    return waiting["value"]["action_requests"][0].get("description")


def test_a_fork_lists_and_records_the_calls_that_it_leaves_out(http: Any) -> None:
    call = looked_up(http, "paid")
    preview = http.get("/sessions/paid/fork?seq=-1").json()
    forked = http.post("/sessions/paid/fork", json={"seq": -1}).json()
    chat(http, forked["id"], "hello")
    [recorded] = events(http, forked["id"], type="fork")
    [origin] = [
        each["forked_from"] for each in http.get("/memory/summaries").json()["sessions"] if "fork" in each["id"]
    ]

    [left_out] = recorded.pop("calls")
    assert left_out.pop("fingerprint").startswith("look_up")
    assert (preview, forked["left_out"], left_out, recorded["origin"], recorded["by"], origin) == (
        {"left_out": [call]},
        [call],
        {"session": "paid", **{key: call[key] for key in ("id", "name", "step", "status")}},
        "paid",
        "ana",
        "paid",
    )


def test_a_fork_from_after_the_calls_leaves_out_none(http: Any) -> None:
    looked_up(http, "after")
    end = events(http, "after")[-1]["seq"]

    assert http.get(f"/sessions/after/fork?seq={end}").json() == {"left_out": []}


def test_the_reviewer_reads_that_an_equal_call_succeeded_in_the_forked_session(http: Any) -> None:
    call = looked_up(http, "origin")
    fork = http.post("/sessions/origin/fork", json={"seq": -1}).json()["id"]
    # Its own calls have not run, and those of its origin are inherited.
    again = http.post(f"/sessions/{fork}/fork", json={"seq": -1})
    unread = http.post("/sessions/origin/fork", json={"seq": -1}).json()["id"]
    chat(http, fork, CALL)
    of_fork = http.post(f"/sessions/{fork}/fork", json={"seq": -1}).json()["id"]
    chat(http, of_fork, CALL)
    chat(http, unread, '!call look_up {"key": "other"}')

    sentence = f"An equal call ({call['id']}, step 1) succeeded in the session 'origin', from which this one is forked."
    assert (again.status_code, question(http, fork), question(http, of_fork), question(http, unread)) == (
        404,
        sentence,
        sentence,
        None,
    )


def test_the_events_of_a_session_that_does_not_exist_yet_are_empty_if_asked_for(http: Any) -> None:
    found = [http.get(f"/memory/sessions/none/events{query}") for query in ("", "?missing_ok=true")]

    assert [(each.status_code, each.json().get("events")) for each in found] == [(404, None), (200, [])]
