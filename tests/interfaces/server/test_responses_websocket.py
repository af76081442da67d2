"""The WebSocket transport of the Responses API, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, MutableMapping
from itertools import groupby
from pathlib import Path
from typing import Any

import openai
import pytest
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from graph_agent.interfaces.server.responses.websocket import ResponsesSocket
from graph_agent.server import ServerSettings
from tests.interfaces.server.process import Served, eventually, serving
from tests.support.chat_client import slow_tool_orders, wait_for_slow_tool

# OpenAI's client opens the connection in a way that websockets 17 deprecates.
pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
LIMIT_S = 0.05
CREATE = '{"type": "response.create"}'
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture
def connection(openai_client: openai.OpenAI) -> Iterator[Any]:
    with openai_client.responses.connect() as opened:
        yield opened


def turn(connection: Any, content: Any, **fields: Any) -> list[Any]:
    """The events of one response."""
    connection.send({"type": "response.create", "model": "parrot", "input": content, **fields})
    return rest_of_turn(connection)


def rest_of_turn(connection: Any) -> list[Any]:
    found: list[Any] = []
    while not found or found[-1].type not in ENDS:
        found.append(connection.recv())
    return found


def ask(connection: Any, content: Any, **fields: Any) -> Any:
    """The response, or the error event."""
    last = turn(connection, content, **fields)[-1]
    return last if last.type == "error" else last.response


def kinds(events: list[Any]) -> list[str]:
    """The types of events; the number of pieces of a text varies."""
    return [kind for kind, _ in groupby(event.type for event in events)]


def opened(server: Served, **headers: str) -> ClientConnection:
    url = server.url.replace("http", "ws", 1)
    return connect(f"{url}/v1/responses", additional_headers=headers, proxy=None, open_timeout=60)


def test_the_events_are_those_of_a_stream(connection: Any, openai_client: openai.OpenAI) -> None:
    order = 'It goes on.\n!call look_up {"key": "k"}'
    events = turn(connection, order)
    streamed: list[Any] = list(openai_client.responses.create(model="parrot", input=order, stream=True))
    kept = openai_client.responses.retrieve(events[-1].response.id)

    assert kinds(events) == kinds(streamed)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (kept, kept.output_text) == (events[-1].response, streamed[-1].response.output_text)


@pytest.mark.parametrize("store", [True, False])
def test_a_response_is_continued_on_its_connection(connection: Any, store: bool) -> None:
    first = ask(connection, "one", store=store)
    second = ask(connection, "two", store=store, previous_response_id=first.id)
    third = ask(connection, [{"role": "user", "content": "three"}], store=store, previous_response_id=second.id)

    assert (third.output_text, third.previous_response_id) == ("You said: one / two / three", second.id)


def test_calls_of_an_unstored_response_are_answered(connection: Any) -> None:
    paint = {"type": "function", "name": "paint", "parameters": {"type": "object", "properties": {}}}
    options: Any = {"store": False, "tools": [paint]}
    first = ask(connection, '!call look_up {"key": "k"}\n!call paint {"color": "red"}', **options)
    [call] = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "painted"}
    second = ask(connection, [output], previous_response_id=first.id, **options)

    assert second.output_text.partition("; ")[2] == "look_up said: the value of k; paint said: painted"


def test_an_unstored_response_of_a_stored_one_is_continued(connection: Any, openai_client: openai.OpenAI) -> None:
    stored = openai_client.responses.create(model="parrot", input="one")
    second = ask(connection, "two", store=False, previous_response_id=stored.id)
    third = ask(connection, "three", store=True, previous_response_id=second.id)
    again = openai_client.responses.create(model="parrot", input="four", previous_response_id=third.id)

    assert again.output_text == "You said: one / two / three / four"


def test_an_unstored_response_is_unknown_elsewhere(connection: Any, openai_client: openai.OpenAI) -> None:
    first = ask(connection, "one", store=False)
    with openai_client.responses.connect() as other:
        unknown = ask(other, "two", store=False, previous_response_id=first.id)
        after = ask(other, "three", store=False)

    assert (unknown.code, unknown.param, after.output_text) == (
        "previous_response_not_found",
        "previous_response_id",
        "You said: three",
    )


def test_a_failed_continuation_forgets_the_unstored_response(connection: Any) -> None:
    first = ask(connection, "one", store=False)
    output = {"type": "function_call_output", "call_id": "call_unknown", "output": ""}
    refused = ask(connection, [output], store=False, previous_response_id=first.id)
    after = ask(connection, "two", store=False, previous_response_id=first.id)

    assert ("answers no call" in refused.message, after.code) == (True, "previous_response_not_found")


def test_a_continuation_without_an_input_is_refused(connection: Any) -> None:
    first = ask(connection, "one", store=False)

    assert ask(connection, None, store=False, previous_response_id=first.id).param == "input"


def test_a_failed_run_is_a_failed_response(connection: Any) -> None:
    events = turn(connection, "one …break two")
    after = ask(connection, "hello")

    assert (events[-1].type, events[-1].response.status, after.output_text) == (
        "response.failed",
        "failed",
        "You said: hello",
    )
    assert "refused this server" in events[-1].response.error.message


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("{", {"code": "invalid_request_error", "status": 400, "text": "The message is not valid JSON"}),
        ("[]", {"code": "invalid_request_error", "status": 400, "text": "of type 'response.create'"}),
        ("{}", {"code": "invalid_request_error", "status": 400, "text": "of type 'response.create'"}),
        ("[" * 500, {"code": "invalid_request_error", "status": 400, "text": "levels"}),
        ({"input": "x", "background": True}, {"code": "invalid_request_error", "status": 400, "text": "use HTTP"}),
        ({"input": "x", "model": "banana"}, {"code": "model_not_found", "status": 404, "text": "banana"}),
        ({"input": 3}, {"code": "invalid_request_error", "status": 400, "text": "input"}),
        ({}, {"code": "invalid_request_error", "status": 400, "text": "input"}),
    ],
)
def test_a_faulty_message_is_an_error_and_the_connection_stays_open(served: Served, message: Any, error: Any) -> None:
    if isinstance(message, dict):
        message = json.dumps({"type": "response.create", "model": "parrot", **message})
    with opened(served) as raw:
        raw.send(message)
        received = json.loads(raw.recv(60))
        raw.send(json.dumps({"type": "response.create", "model": "parrot", "input": "hello", "stream": True}))
        after = json.loads(raw.recv(60))

    assert (received["type"], received["status"], received["error"]["code"], after["type"]) == (
        "error",
        error["status"],
        error["code"],
        "response.created",
    )
    assert error["text"] in received["error"]["message"]


def test_messages_are_answered_one_after_the_other(served: Served) -> None:
    with opened(served) as raw:
        for text in ("one", "two", "three"):
            raw.send(json.dumps({"type": "response.create", "model": "parrot", "input": text}))
        events: list[Any] = []
        while sum(event["type"] in ENDS for event in events) < 3:
            events.append(json.loads(raw.recv(60)))

    opens = [event["type"] for event in events if event["type"] in ("response.created", *ENDS)]
    texts = [event["response"]["output"][0]["content"][0]["text"] for event in events if event["type"] == ENDS[0]]
    assert (opens, texts) == (
        ["response.created", "response.completed"] * 3,
        ["You said: one", "You said: two", "You said: three"],
    )


def test_a_client_that_leaves_ends_its_run(served: Served, tmp_path: Path) -> None:
    with opened(served, **{"X-Session-Id": "left-by-socket"}) as raw:
        order = slow_tool_orders(tmp_path)
        raw.send(json.dumps({"type": "response.create", "model": "parrot", "input": order}))
        wait_for_slow_tool(tmp_path)
    with served.http() as http:
        eventually(lambda: http.get("/sessions/left-by-socket").json()["status"] == "ABORTED")


def test_a_client_that_leaves_with_many_requests_waiting_ends_its_run(served: Served, tmp_path: Path) -> None:
    with opened(served, **{"X-Session-Id": "left-in-a-queue"}) as raw:
        for text in (slow_tool_orders(tmp_path), *["hello"] * 30):
            raw.send(json.dumps({"type": "response.create", "model": "parrot", "input": text}))
        wait_for_slow_tool(tmp_path)
    with served.http() as http:
        eventually(lambda: http.get("/sessions/left-in-a-queue").json()["status"] == "ABORTED")
        inputs = http.get("/memory/sessions/left-in-a-queue/events", params={"type": "user_message"}).json()["events"]

    assert [event["content"] for event in inputs] == [slow_tool_orders(tmp_path)]


def test_a_stopping_server_ends_responses_before_it_closes_connections(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        idle, called, asked = (opened(server, **{"X-Session-Id": f"s{index}"}) for index in range(3))
        for connection, text in ((called, slow_tool_orders(tmp_path)), (asked, f"!wait {tmp_path / 'go'}")):
            connection.send(json.dumps({"type": "response.create", "model": "parrot", "input": text}))
            connection.send(json.dumps({"type": "response.create", "model": "parrot", "input": "waiting"}))
        wait_for_slow_tool(tmp_path)
        server.term()
        closed = [rest_until_closed(idle)]
        (tmp_path / "go").touch()
        closed += [rest_until_closed(called), rest_until_closed(asked)]
        status = server.process.wait(60)

    assert ([(ends, code) for ends, code, _ in closed], status) == (
        [([], 1012), (["response.failed"], 1012), (["response.completed"], 1012)],
        0,
    )
    assert "Continue the session with POST /sessions/s1/resume" in closed[1][2]


def rest_until_closed(connection: ClientConnection) -> tuple[list[str], int, str]:
    """The types of the last events of responses, the code of the close, and the newest event."""
    events: list[str] = []
    try:
        while True:
            events.append(str(connection.recv(60)))
    except ConnectionClosed as closed:
        code = closed.rcvd.code if closed.rcvd is not None else 0
    types = [json.loads(event)["type"] for event in events]
    return [each for each in types if each in ENDS], code, events[-1] if events else ""


def test_connections_need_a_key_and_are_limited(tmp_path: Path) -> None:
    key = "ana-has-this-long-key"
    statuses = []
    limits = ("--set", "event_streams=1", "--set", "max_body_bytes=10000")
    environment = {"GRAPH_AGENT_API_KEYS": f"ana:{key}"}
    with serving(tmp_path, *limits, environment=environment, up="/health") as server:
        for headers in ({}, {"authorization": "Bearer wrong-wrong-wrong"}):
            with pytest.raises(InvalidStatus) as caught:
                opened(server, **headers)
            statuses.append(caught.value.response.status_code)
        with opened(server, authorization=f"Bearer {key}") as first:
            with pytest.raises(InvalidStatus) as caught:
                opened(server, authorization=f"Bearer {key}")
            statuses.append(caught.value.response.status_code)
            first.send(json.dumps({"type": "response.create", "model": "parrot", "input": "hello"}))
            answered = json.loads(first.recv(60))["type"]
            first.send(json.dumps({"type": "response.create", "model": "parrot", "input": "x" * 20_000}))
            with pytest.raises(ConnectionClosed) as closed:
                list(first)
        log = server.log.read_text()

    assert " ERROR " not in log
    assert closed.value.rcvd is not None
    assert (statuses, answered, closed.value.rcvd.code) == ([401, 401, 429], "response.created", 1009)


def test_a_page_of_another_origin_cannot_connect(served: Served) -> None:
    with pytest.raises(InvalidStatus) as caught:
        opened(served, origin="http://evil.example")

    assert caught.value.response.status_code == 403


def test_a_connection_ends_at_its_limit_after_the_response_that_has_begun() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(2 * LIMIT_S)
        await JSONResponse({"error": {"type": "t", "message": "answered"}}, 400)(scope, receive, send)

    sent = asyncio.run(sent_by_socket(answer, received(CREATE, CREATE), ServerSettings(), LIMIT_S))
    texts = [json.loads(message["text"])["error"] for message in sent if message["type"] == "websocket.send"]

    assert [error.get("code") for error in texts] == ["t", "websocket_connection_limit_reached"]
    assert sent[-1]["type"] == "websocket.close"


def test_waiting_requests_are_limited_by_their_bytes() -> None:
    """The limit disconnects the client: the request in progress ends, and those that wait are not answered."""
    requests = []
    messages = received(CREATE)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(10):
            messages.put_nowait({"type": "websocket.receive", "text": CREATE})
        requests.append([(await receive())["type"] for _ in range(2)])
        await JSONResponse({"error": {"type": "t", "message": "cancelled"}}, 400)(scope, receive, send)

    sent = asyncio.run(sent_by_socket(answer, messages, ServerSettings(max_body_bytes=10_000)))

    assert requests == [["http.request", "http.disconnect"]]
    assert (sent[-1]["type"], sent[-1]["code"]) == ("websocket.close", 1008)


def test_a_connection_with_an_incomplete_response_answers_nothing_more() -> None:
    begun = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})

    sent = asyncio.run(sent_by_socket(answer, received(CREATE, CREATE), ServerSettings()))

    assert (begun, [message["type"] for message in sent]) == (["/"], ["websocket.accept"])


def received(*texts: str) -> asyncio.Queue[Any]:
    """The ASGI messages of a connection that receives some texts."""
    messages: asyncio.Queue[Any] = asyncio.Queue()
    messages.put_nowait({"type": "websocket.connect"})
    for text in texts:
        messages.put_nowait({"type": "websocket.receive", "text": text})
    return messages


async def sent_by_socket(
    app: Any, messages: asyncio.Queue[Any], settings: ServerSettings, *limit_s: float
) -> list[MutableMapping[str, Any]]:
    """The ASGI messages that a connection sends, whose requests an application answers."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    websocket = WebSocket({"type": "websocket", "path": "/", "headers": [], "app": app}, messages.get, send)
    await websocket.accept()
    async with asyncio.timeout(30):
        await ResponsesSocket(websocket, settings, asyncio.Event(), *limit_s).serve()
    return sent
