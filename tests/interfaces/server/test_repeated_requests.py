"""Requests that clients repeat without a key: an equal one continues a failed run, and no write runs twice."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import BaseTool
from pydantic import SecretStr

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.server import AgentSource, ApiKey, ServerSettings, create_app
from tests.interfaces.server.booking import BookingModel, book, bookings
from tests.support.agents import asks, echo

KEYS = tuple(ApiKey(name=name, key=SecretStr(f"{name}-0123456789abcdef")) for name in ("ana", "bo"))
FAILED = "This request failed."
CONFIRM: dict[str, Any] = {"name": "confirm", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def served(
    folder: Path, *, graph: Callable[[], CompiledAgentGraph] | None = None, db: str = "", **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server in this process."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        own = partial(create_graph_agent, BookingModel(), tools=[book], config=LoopConfig(model_retries=0))
        yield graph() if graph is not None else own()

    app = create_app(
        AgentSource("booker", "", db or f"sqlite:///{folder}/s.db", opened), settings=ServerSettings(**settings)
    )
    async with (
        asyncio.timeout(60),
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=60) as http,
    ):
        yield http


@dataclass(frozen=True)
class Api:
    """One API: a request with a text, and the text of its answer."""

    path: str
    fields: dict[str, Any]
    messages: str = "messages"

    def body(self, text: str, **fields: Any) -> dict[str, Any]:
        message = {"role": "user", "content": text}
        return {"model": "booker", self.messages: [message], **self.fields, **fields}

    def answer(self, response: httpx.Response) -> tuple[str, str | None]:
        """The text of a whole or streamed answer, and the status that marks a failed run."""
        if not response.headers["content-type"].startswith("text/event-stream"):
            return self._whole(response.json())
        data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
        events = [json.loads(each) for each in data]
        assert not [each for each in events if each.get("type") == "error" or "error" in each], events
        status = next((each["run_status"] for each in events if "run_status" in each), None)
        if self.messages == "input":
            return self._whole(events[-1]["response"])
        texts = [each.get("delta", {}).get("text", "") for each in events]
        texts += [choice["delta"].get("content", "") for each in events for choice in each.get("choices", ())]
        return "".join(texts), status

    def _whole(self, body: dict[str, Any]) -> tuple[str, str | None]:
        parts = body.get("content", [])
        parts = parts + [part for item in body.get("output", ()) for part in item.get("content", ())]
        texts = [part["text"] for part in parts] + [each["message"]["content"] for each in body.get("choices", ())]
        return "".join(texts), body.get("run_status")


APIS = {
    "chat": Api("/v1/chat/completions", {}),
    "messages": Api("/v1/messages", {"max_tokens": 100}),
    "responses": Api("/v1/responses", {"store": False}, "input"),
    "stored responses": Api("/v1/responses", {}, "input"),
}


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return APIS[request.param]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", ["", "quietly"])
async def test_a_run_that_fails_after_a_write_ends_as_a_message(
    tmp_path: Path, api: Api, words: str, stream: bool
) -> None:
    (tmp_path / "fail").touch()
    async with served(tmp_path) as http:
        response = await http.post(api.path, json=api.body(f"book {tmp_path} {words}", stream=stream))

    text, status = api.answer(response)
    # A stream has sent its headers before.
    header = response.headers.get("x-run-status", "FAILED" if stream else None)
    assert (response.status_code, status, header) == (200, "FAILED", "FAILED")
    assert (FAILED in text, "Done: book." in text, bookings(tmp_path)) == (True, True, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_equal_request_continues_a_failed_run_and_is_new_after_a_success(
    tmp_path: Path, api: Api, stream: bool
) -> None:
    (tmp_path / "fail").touch()
    order = f"book {tmp_path}"
    async with served(tmp_path) as http:
        failed = [await http.post(api.path, json=api.body(order, stream=each)) for each in (stream, not stream)]
        after_failure = bookings(tmp_path)
        (tmp_path / "fail").unlink()
        continued = await http.post(api.path, json=api.body(order, stream=stream))
        after_success = bookings(tmp_path)
        new = await http.post(api.path, json=api.body(order, stream=stream))

    texts = ["".join(api.answer(each)[0].split()) for each in (continued, new)]
    assert [api.answer(each)[1] for each in (*failed, continued, new)] == ["FAILED", "FAILED", None, None]
    assert texts == ["Ibookit.booked"] * 2
    assert (after_failure, after_success, bookings(tmp_path)) == (1, 1, 2)


def ids(response: httpx.Response) -> set[str]:
    """The ids of a whole or streamed answer; those of its parts are left out."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return {response.json()["id"]}
    data = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return {id_ for each in data if (id_ := (each.get("message") or each.get("response") or each).get("id"))}


async def test_a_repeated_key_gets_the_id_of_the_first_answer(tmp_path: Path, api: Api) -> None:
    async with served(tmp_path) as http:
        answers = [
            await http.post(
                api.path, json=api.body(f"book {tmp_path}", stream=stream), headers={"Idempotency-Key": "k"}
            )
            for stream in (False, True, False)
        ]

    assert (len({id_ for each in answers for id_ in ids(each)}), bookings(tmp_path)) == (1, 1)


async def test_attempts_without_a_key_have_ids_of_their_own_unless_the_response_is_stored(
    tmp_path: Path, api: Api
) -> None:
    (tmp_path / "fail").touch()
    async with served(tmp_path) as http:
        failed = [await http.post(api.path, json=api.body(f"book {tmp_path}", stream=each)) for each in (False, True)]
        (tmp_path / "fail").unlink()
        continued = await http.post(api.path, json=api.body(f"book {tmp_path}"))
        new = await http.post(api.path, json=api.body(f"book {tmp_path}"))

    attempts = [id_ for each in (*failed, continued) for id_ in ids(each)]
    (other,) = ids(new)
    assert (len(attempts), len({*attempts}), other in attempts) == (
        3,
        1 if api is APIS["stored responses"] else 3,
        False,
    )


async def test_a_run_that_failed_before_a_write_is_an_error_and_is_continued(tmp_path: Path, api: Api) -> None:
    (tmp_path / "fail-first").write_text("503")
    async with served(tmp_path) as http:
        failed = await http.post(api.path, json=api.body(f"book {tmp_path}"))
        (tmp_path / "fail-first").unlink()
        continued = await http.post(api.path, json=api.body(f"book {tmp_path}"))

    assert (failed.status_code, failed.headers["retry-after"]) == (502, "5")
    assert ("".join(api.answer(continued)[0].split()), bookings(tmp_path)) == ("Ibookit.booked", 1)


async def test_sessions_in_memory_are_continued_too(tmp_path: Path, api: Api) -> None:
    (tmp_path / "fail").touch()
    async with served(tmp_path, db="memory:") as http:
        sent = [http.post(api.path, json=api.body(f"book {tmp_path}")) for _ in range(3)]
        answers = await asyncio.gather(*sent)

    assert ([api.answer(each)[1] for each in answers], bookings(tmp_path)) == (["FAILED"] * 3, 1)


async def test_a_transient_failure_before_the_first_byte_asks_for_the_request_again(tmp_path: Path, api: Api) -> None:
    (tmp_path / "fail-once").write_text("503")
    order = f"book {tmp_path} quietly"
    async with served(tmp_path) as http:
        failed = await http.post(api.path, json=api.body(order))
        continued = await http.post(api.path, json=api.body(order))

    message = failed.json()["error"]["message"]
    assert (failed.status_code, failed.headers["retry-after"], "Done: book." in message) == (502, "5", True)
    assert (api.answer(continued), bookings(tmp_path)) == (("booked", None), 1)


async def test_a_client_that_retries_gets_the_answer_of_one_run(tmp_path: Path) -> None:
    (tmp_path / "fail-once").write_text("503")
    async with served(tmp_path) as http:
        there: Any = http
        client: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=there)
        client._calculate_retry_timeout = lambda *_: 0.01
        reply = await client.chat.completions.create(
            model="booker", messages=[{"role": "user", "content": f"book {tmp_path} quietly"}]
        )

    assert (reply.choices[0].message.content, bookings(tmp_path)) == ("booked", 1)


def changed_headers(turn: str) -> dict[str, str]:
    return {"x-codex-turn-metadata": json.dumps({"turn_id": turn})}


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"user": "another"}, {}),
        ({"temperature": 0.5}, {}),
        ({"metadata": {"user_id": "another"}}, {}),
        ({"client_metadata": {"turn_id": "another"}}, {}),
        ({"client_metadata": {"turn_id": "another", "x-codex-turn-metadata": "no JSON"}}, {}),
        ({"client_metadata": changed_headers("another")}, {}),
        ({}, changed_headers("another")),
        ({}, {"x-user-token": "another"}),
        ({}, {"authorization": f"Bearer {KEYS[1].key.get_secret_value()}"}),
    ],
)
async def test_another_request_is_a_new_input(
    tmp_path: Path, api: Api, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    (tmp_path / "fail").touch()
    key = {"authorization": f"Bearer {KEYS[0].key.get_secret_value()}"}
    async with served(tmp_path, keys=KEYS, credential_headers={"token": "X-User-Token"}) as http:
        for changed, sent in (({}, {}), (fields, headers)):
            await http.post(api.path, json=api.body(f"book {tmp_path}", **changed), headers={**key, **sent})

    assert bookings(tmp_path) == 2


@pytest.mark.parametrize(
    "fields", [{"stream": True}, {"client_metadata": {"sent-ms": "2"}}, {"stream_options": {"include_usage": True}}]
)
async def test_how_a_request_is_sent_does_not_count(tmp_path: Path, api: Api, fields: dict[str, Any]) -> None:
    (tmp_path / "fail").touch()
    async with served(tmp_path) as http:
        for changed in ({"client_metadata": {"sent-ms": "1"}}, fields):
            await http.post(api.path, json=api.body(f"book {tmp_path}", **changed))

    assert bookings(tmp_path) == 1


async def test_a_turn_is_continued_although_the_client_sends_the_text_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    api = APIS["responses"]
    body = api.body(f"book {tmp_path}", client_metadata={"turn_id": "t1"})
    received = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I book it."}]}
    async with served(tmp_path) as http:
        await http.post(api.path, json=body)
        (tmp_path / "fail").unlink()
        continued = await http.post(api.path, json={**body, "input": [*body["input"], received]})

    assert (api.answer(continued)[1], bookings(tmp_path)) == (None, 1)


async def test_equal_requests_run_one_at_a_time(tmp_path: Path, api: Api) -> None:
    (tmp_path / "fail-once").touch()
    async with served(tmp_path) as http:
        sent = [http.post(api.path, json=api.body(f"book {tmp_path}", stream=bool(i % 2))) for i in range(6)]
        answers = await asyncio.gather(*sent)

    # One failed, another continued it, and the others are inputs of their own.
    assert sorted(str(api.answer(each)[1]) for each in answers) == ["FAILED", *["None"] * 5]
    assert bookings(tmp_path) == 5


async def test_a_failed_run_is_kept_for_the_time_of_the_setting(
    tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fail").touch()
    clock = 1_000_000.0
    monkeypatch.setattr("graph_agent.interfaces.server.chat.attempts.time.time", lambda: clock)
    found: list[int] = []
    async with served(tmp_path, retry_ttl_s=60) as http:
        for passed_s in (0, 59, 61):
            clock += passed_s
            await http.post(api.path, json=api.body(f"book {tmp_path}"))
            found.append(bookings(tmp_path))

    assert found == [1, 1, 2]


async def test_a_request_with_another_history_than_its_session_is_continued(tmp_path: Path, api: Api) -> None:
    (tmp_path / "fail").touch()
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    order = {"role": "user", "content": f"book {tmp_path}"}
    async with served(tmp_path) as http:
        await http.post(api.path, json=api.body("hello"), headers={"X-Session-Id": "s"})
        body = {**api.body(""), api.messages: [*history, order]}
        ends = [await http.post(api.path, json=body, headers={"X-Session-Id": "s"}) for _ in range(2)]

    assert (api.answer(ends[1])[1], bookings(tmp_path)) == ("FAILED", 1)


async def test_a_background_response_is_answered_once_it_is_queued(tmp_path: Path) -> None:
    api = APIS["stored responses"]
    async with served(tmp_path) as http:
        body = api.body(f"book {tmp_path}", background=True)
        queued = [(await http.post(api.path, json=body)).json() for _ in range(2)]
        for each in queued:
            while (await http.get(f"{api.path}/{each['id']}")).json()["status"] != "completed":
                await asyncio.sleep(0.01)

    assert (queued[0]["id"] != queued[1]["id"], bookings(tmp_path)) == (True, 2)


@pytest.mark.parametrize("name", ["chat", "messages", "stored responses"])
async def test_a_session_decides_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "fail").touch()
    api = APIS[name]
    async with served(tmp_path) as http:
        headers = {"X-Session-Id": "s"}
        sent = [await http.post(api.path, json=api.body(f"book {tmp_path}"), headers=headers) for _ in range(2)]
        session = (await http.get("/sessions/s")).json()
        events = (await http.get("/memory/sessions/s/events")).json()["events"]

    found = [(each.status_code, api.answer(each)[1], each.headers["x-run-status"]) for each in sent]
    assert (found, session["status"], bookings(tmp_path)) == ([(200, "FAILED", "FAILED")] * 2, "FAILED", 2)
    assert [each["to"] for each in events if each["type"] == "status"].count("FAILED") == 2


async def test_a_key_decides_alone(tmp_path: Path, api: Api) -> None:
    (tmp_path / "fail").touch()
    async with served(tmp_path) as http:
        responses = [
            await http.post(api.path, json=api.body(f"book {tmp_path}"), headers={"Idempotency-Key": key})
            for key in ("k1", "k1", "k2")
        ]

    replayed = [each.headers.get("idempotent-replayed") for each in responses]
    assert ([api.answer(each)[1] for each in responses], replayed) == (["FAILED"] * 3, [None, "true", None])
    assert bookings(tmp_path) == 2


@pytest.mark.parametrize("name", ["chat", "responses"])
async def test_results_of_the_client_are_continued(tmp_path: Path, name: str) -> None:
    (tmp_path / "fail").touch()
    api = APIS[name]
    tool = {"type": "function", **CONFIRM} if name == "responses" else {"type": "function", "function": CONFIRM}
    body = api.body(f"book {tmp_path} and confirm", tools=[tool])
    async with served(tmp_path) as http:
        asked = (await http.post(api.path, json=body)).json()
        again = (await http.post(api.path, json=body)).json()  # another input: the first has its answer
        after_calls = bookings(tmp_path)
        results = {**body, api.messages: [*body[api.messages], *_with_result(asked)]}
        failed = await http.post(api.path, json=results)
        (tmp_path / "fail").unlink()
        continued = await http.post(api.path, json=results)

    assert (_call_id(asked) != _call_id(again), after_calls, bookings(tmp_path)) == (True, 2, 2)
    assert (api.answer(failed)[1], api.answer(continued)) == ("FAILED", ("booked and yes", None))


def _call_id(answer: dict[str, Any]) -> str:
    if "output" in answer:
        return str(next(each["call_id"] for each in answer["output"] if each["type"] == "function_call"))
    return str(answer["choices"][0]["message"]["tool_calls"][0]["id"])


def _with_result(answer: dict[str, Any]) -> list[dict[str, Any]]:
    if "output" in answer:
        calls = [each for each in answer["output"] if each["type"] == "function_call"]
        return [*calls, {"type": "function_call_output", "call_id": _call_id(answer), "output": "yes"}]
    return [answer["choices"][0]["message"], {"role": "tool", "tool_call_id": _call_id(answer), "content": "yes"}]


async def test_a_stored_response_is_continued_in_its_chain(tmp_path: Path) -> None:
    api = APIS["stored responses"]
    async with served(tmp_path) as http:
        first = (await http.post(api.path, json=api.body("hello"))).json()
        (tmp_path / "fail").touch()
        body = api.body(f"book {tmp_path}", previous_response_id=first["id"])
        failed = (await http.post(api.path, json=body)).json()
        (tmp_path / "fail").unlink()
        continued = (await http.post(api.path, json=body)).json()
        session = (await http.get(f"/sessions/{first['id']}")).json()

    assert (failed["run_status"], continued["status"], session["status"]) == ("FAILED", "completed", "COMPLETED")
    assert (continued["id"] == failed["id"], bookings(tmp_path)) == (True, 1)


def agent_with_delegate() -> CompiledAgentGraph:
    desk = create_graph_agent(BookingModel(), tools=[book])
    return create_graph_agent(DelegatingModel(), delegates=[GraphDelegate("desk", "Books rooms.", desk)])


class DelegatingModel(BookingModel):
    """Delegates the order, where `BookingModel` calls `book`."""

    async def _agenerate(self, messages: Any, stop: Any = None, *_: Any, **kwargs: Any) -> Any:
        result = await super()._agenerate(messages, stop, **kwargs)
        message: Any = result.generations[0].message
        for call in message.tool_calls:
            call |= {"name": "delegate_to_desk", "args": {"task": messages[-1].text}}
        return result

    async def _astream(self, messages: Any, *_: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        message: Any = (await self._agenerate(messages, **kwargs)).generations[0].message
        yield ChatGenerationChunk(message=AIMessageChunk(**message.model_dump(exclude={"type"})))


async def test_a_delegate_may_write(tmp_path: Path) -> None:
    api = APIS["chat"]
    (tmp_path / "fail").touch()
    async with served(tmp_path, graph=agent_with_delegate) as http:
        first = await http.post(api.path, json=api.body(f"book {tmp_path}"))
        again = await http.post(api.path, json=api.body(f"book {tmp_path}"))

    assert ([api.answer(each)[1] for each in (first, again)], bookings(tmp_path)) == (["FAILED"] * 2, 1)


async def test_an_expired_run_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    api = APIS["chat"]
    async with served(tmp_path, retry_ttl_s=0.01) as http:
        await http.post(api.path, json=api.body(f"book {tmp_path}"))
        while _rows(tmp_path) != (0, 0):
            await asyncio.sleep(0.05)

    assert bookings(tmp_path) == 1


async def test_an_agent_that_only_reads_stores_nothing(tmp_path: Path) -> None:
    def reading() -> CompiledAgentGraph:
        read: BaseTool = echo.model_copy(update={"metadata": {"effect": "read"}})
        return create_graph_agent(ScriptedChatModel([asks(("c1", "echo", {"text": "hi"})), "Done."]), tools=[read])

    api = APIS["chat"]
    async with served(tmp_path, graph=reading) as http:
        answered = await http.post(api.path, json=api.body("hello"))

    assert (api.answer(answered), _rows(tmp_path)) == (("Done.", None), (0, 0))


async def test_a_run_that_was_answered_leaves_nothing(tmp_path: Path) -> None:
    api = APIS["chat"]
    async with served(tmp_path) as http:
        answered = await http.post(api.path, json=api.body(f"book {tmp_path}"))

    assert (api.answer(answered)[1], _rows(tmp_path)) == (None, (0, 0))


def _rows(folder: Path) -> tuple[int, int]:
    """The numbers of checkpoints and of stored items in a database."""
    with sqlite3.connect(folder / "s.db") as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        counts = [
            connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] if name in tables else 0
            for name in ("checkpoints", "store")
        ]
    return counts[0], counts[1]
