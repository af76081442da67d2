"""Background responses: read, streamed again, cancelled, and continued in every process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.interfaces.server.process import Served, eventually, serving
from tests.support.chat_client import slow_tool_orders, wait_for_slow_tool


def start(client: openai.OpenAI, text: str, **options: Any) -> Any:
    return client.responses.create(model="parrot", input=text, background=True, **options)


def read(client: openai.OpenAI, id_: str, **options: Any) -> Any:
    return client.responses.retrieve(id_, **options)


def ended(client: openai.OpenAI, id_: str) -> Any:
    """The response when it has ended."""
    found: list[Any] = []

    def is_over() -> bool:
        found[:] = [read(client, id_)]
        return found[0].status not in ("queued", "in_progress")

    eventually(is_over)
    return found[0]


def client_of(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[list[openai.OpenAI]]:
    """Clients of two processes on one database."""
    other = tmp_path / "other"
    other.mkdir()
    database = f"sqlite:///{tmp_path / 'sessions.db'}"
    with serving(tmp_path) as one, serving(other, "--db", database) as two:
        opened = [client_of(one), client_of(two)]
        yield opened
        for client in opened:
            client.close()


def test_a_background_response_is_answered_after_its_request(openai_client: openai.OpenAI, tmp_path: Path) -> None:
    queued = start(openai_client, slow_tool_orders(tmp_path))
    wait_for_slow_tool(tmp_path)
    eventually(lambda: read(openai_client, queued.id).status == "in_progress")
    with pytest.raises(openai.BadRequestError, match="still in progress"):
        openai_client.responses.create(model="parrot", input="on", previous_response_id=queued.id)
    (tmp_path / "go").touch()
    done = ended(openai_client, queued.id)
    further = openai_client.responses.create(model="parrot", input="on", previous_response_id=queued.id)

    assert (queued.status, done.status, "go is there" in done.output_text) == ("queued", "completed", True)
    assert further.output_text.endswith("/ on")


def test_a_stream_is_continued_where_it_broke_off(openai_client: openai.OpenAI, tmp_path: Path) -> None:
    first: list[Any] = []
    for event in start(openai_client, slow_tool_orders(tmp_path), stream=True):
        first.append(event)
        if event.type == "response.output_text.delta":
            break
    wait_for_slow_tool(tmp_path)
    (tmp_path / "go").touch()
    id_ = first[0].response.id
    rest = list(read(openai_client, id_, stream=True, starting_after=first[-1].sequence_number))
    again = list(read(openai_client, id_, stream=True))

    assert [event.sequence_number for event in (*first, *rest)] == list(range(len(first) + len(rest)))
    assert [event.type for event in first[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert (rest[-1].type, again) == ("response.completed", [*first, *rest])


def test_every_process_reads_streams_and_cancels(clients: list[openai.OpenAI], tmp_path: Path) -> None:
    one, two = clients
    id_ = start(one, slow_tool_orders(tmp_path), stream=False).id
    wait_for_slow_tool(tmp_path)
    status = two.responses.retrieve(id_).status
    cancelled = two.responses.cancel(id_)
    seen = [client.responses.retrieve(id_).status for client in clients]
    *_, last = read(two, id_, stream=True)

    assert (status in ("queued", "in_progress"), cancelled.status, seen, last.response.status) == (
        True,
        "cancelled",
        ["cancelled", "cancelled"],
        "cancelled",
    )
    assert two.responses.cancel(id_) == cancelled


def test_a_response_whose_process_ends_is_failed_and_its_session_goes_on(tmp_path: Path) -> None:
    (tmp_path / "stopped").mkdir()
    (tmp_path / "killed").mkdir()
    with serving(tmp_path, "--set", "drain_s=1") as stopping, client_of(stopping) as client:
        stopped = start(client, slow_tool_orders(tmp_path / "stopped")).id
        wait_for_slow_tool(tmp_path / "stopped")
        stopping.term()
        stopping.process.wait(60)
    with serving(tmp_path) as dying, client_of(dying) as client:
        first = read(client, stopped)
        killed = start(client, slow_tool_orders(tmp_path / "killed")).id
        wait_for_slow_tool(tmp_path / "killed")
        dying.kill_all()
    with serving(tmp_path) as after, client_of(after) as client:
        second = ended(client, killed)
        further = client.responses.create(model="parrot", input="on", previous_response_id=killed)

    assert [(each.status, each.error.code) for each in (first, second)] == [("failed", "server_error")] * 2
    assert all(
        f"POST /sessions/{id_}/resume" in each.error.message for id_, each in ((stopped, first), (killed, second))
    )
    assert ("is being stopped" in first.error.message, "has ended" in second.error.message) == (True, True)
    assert further.output_text.partition(" / ")[2].startswith("on")


def test_a_stream_of_a_response_whose_process_ends_has_an_end(clients: list[openai.OpenAI], tmp_path: Path) -> None:
    with serving(tmp_path) as dying, client_of(dying) as client:
        killed = start(client, slow_tool_orders(tmp_path)).id
        wait_for_slow_tool(tmp_path)
        dying.kill_all()
    with pytest.raises(openai.APIError, match="has ended"):
        list(read(clients[0], killed, stream=True))
    with clients[1].responses.with_streaming_response.retrieve(killed, stream=True) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines[:-1]]

    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert (events[-1]["response"]["status"], lines[-1]) == ("failed", "[DONE]")


def test_a_failed_run_is_a_failed_response(openai_client: openai.OpenAI) -> None:
    failed = ended(openai_client, start(openai_client, "!fail x").id)

    assert (failed.status, failed.error.code, "refused this server" in failed.error.message) == (
        "failed",
        "server_error",
        True,
    )


def test_only_background_responses_are_streamed_again_or_cancelled(openai_client: openai.OpenAI) -> None:
    answer = openai_client.responses.create(model="parrot", input="hello")
    for send in (
        lambda: openai_client.responses.cancel(answer.id),
        lambda: openai_client.responses.retrieve(answer.id, stream=True),
    ):
        with pytest.raises(openai.BadRequestError, match="Only responses with background: true"):
            send()


def test_a_running_response_is_not_deleted(openai_client: openai.OpenAI, served: Served, tmp_path: Path) -> None:
    id_ = start(openai_client, slow_tool_orders(tmp_path)).id
    wait_for_slow_tool(tmp_path)
    with pytest.raises(openai.ConflictError, match="in progress"):
        openai_client.responses.delete(id_)
    openai_client.responses.cancel(id_)
    openai_client.responses.delete(id_)
    with served.http() as http:
        found = http.get(f"/v1/responses/{id_}", params={"stream": "true"}).status_code

    assert found == 404
