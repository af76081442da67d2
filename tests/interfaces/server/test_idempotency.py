"""Requests with an `Idempotency-Key`: each is run once, and a repeated one gets the same answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from graph_agent import LoopConfig, ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.chat.run_spec import with_key
from graph_agent.interfaces.server.chat.schemas import ChatRequest
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.server import AgentSource, create_app
from tests.interfaces.server.hosting import MINE, answered, ask, outcome_of, running, spec_of, start_run, with_results
from tests.interfaces.server.process import Served, serving
from tests.support.agents import asks, echo
from tests.support.chat_client import (
    CHAT,
    body,
    events,
    slow_tool_orders,
    wait_for_slow_tool,
)
from tests.support.gates import Gate, GatedModel, gated_tool

ECHO = asks(("c1", "echo", {"text": "hi"}))


def keyed(key: str, request: ChatRequest | None = None, **fields: Any) -> ChatRequest:
    """A request with a key."""
    return with_key(request or ask(**fields), key)


async def user_messages(runs: Runs, thread: str) -> list[Any]:
    events = await SessionMemory(runs.host.kept).get_session_events(thread)
    return [event["content"] for event in events if event["type"] == "user_message"]


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_repeated_request_gets_the_first_answer(session: str | None) -> None:
    model = GatedModel([ECHO, "No more actions.", "Done."])
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=[echo])) as runs:
        outcomes = [await answered(runs.host, keyed("k", session_id=session)) for _ in range(2)]
        thread = (await spec_of(runs.host, keyed("k", session_id=session))).thread
        given = await user_messages(runs, thread)

    assert (outcomes[0].text, outcomes[1], given) == ("Done.", outcomes[0], ["hello"])


@pytest.mark.parametrize("session", [None, "s"])
async def test_results_of_client_tools_are_used_once(session: str | None) -> None:
    model = GatedModel([asks(("c1", "mine", {})), "No more actions.", "Done."])
    async with asyncio.timeout(30), running(create_graph_agent(model)) as runs:
        first = keyed("k1", client_tools=[MINE], session_id=session)
        waiting = [await answered(runs.host, first) for _ in range(2)]
        results = keyed("k2", with_results(waiting[0].calls, session_id=session))
        outcomes = [await answered(runs.host, results) for _ in range(2)]
        late = await answered(runs.host, first)

    assert (waiting[1], late, [outcome.text for outcome in outcomes]) == (waiting[0], waiting[0], ["Done.", "Done."])


async def test_a_decision_is_used_once() -> None:
    model = GatedModel([ECHO, "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[echo], config=LoopConfig(approve=["echo"]))
    async with asyncio.timeout(30), running(graph) as runs:
        question = [await answered(runs.host, keyed("k1", session_id="s")) for _ in range(2)]
        decision = keyed("k2", ask(HumanMessage("approve"), session_id="s"))
        outcomes = [await answered(runs.host, decision) for _ in range(2)]
        given = await user_messages(runs, "s")

    assert (question[1], [outcome.text for outcome in outcomes], given) == (question[0], ["Done."] * 2, ["hello"])


async def test_a_request_repeated_while_it_runs_waits_for_the_answer() -> None:
    gate = Gate()
    model = GatedModel([asks(("c1", "work", {})), "No more actions.", "Done."])
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=[gated_tool(gate)])) as runs:
        first = await start_run(runs.host, keyed("k", session_id="s"))
        await gate.reached()
        second = await start_run(runs.host, keyed("k", session_id="s"))
        with pytest.raises(ProblemError) as busy:
            await answered(runs.host, keyed("other", session_id="s"))
        gate.open()
        outcomes = await outcome_of(first), await outcome_of(second)

    assert (busy.value.kind, outcomes[0].text, outcomes[1]) == ("busy", "Done.", outcomes[0])


class Echo(ScriptedChatModel):
    """Answers with the user's newest text."""

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        return AIMessage(f"answer to {next(each.text for each in reversed(messages) if each.type == 'human')}")


async def test_a_request_killed_after_its_first_checkpoint_gets_its_own_answer_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise OSError("killed")

    async with asyncio.timeout(30), running(create_graph_agent(Echo(responses=[]))) as runs:
        saver: Any = runs.host.kept.checkpointer
        put = saver.aput

        async def put_input(config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
            return await (put if metadata["source"] == "input" else fail)(config, checkpoint, metadata, versions)

        second = keyed("k2", ask(HumanMessage("two"), session_id="s"))
        first = await answered(runs.host, keyed("k1", ask(HumanMessage("one"), session_id="s")))
        with monkeypatch.context() as patch:
            patch.setattr(saver, "aput", put_input)
            patch.setattr(saver, "aput_writes", fail)
            with pytest.raises(ProblemError):
                await answered(runs.host, second)
        outcomes = [await answered(runs.host, second) for _ in range(2)]

    assert [each.text for each in (first, *outcomes)] == ["answer to one", "answer to two", "answer to two"]


async def test_equal_responses_at_the_same_time_wait_for_the_one_that_runs(tmp_path: Path) -> None:
    model = GatedModel([ECHO, "No more actions.", "Done."])

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield create_graph_agent(model, tools=[echo])

    app = create_app(AgentSource("a", "", f"sqlite:///{tmp_path}/s.db", opened))
    transport = httpx.ASGITransport(app)
    async with (
        asyncio.timeout(120),
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as http,
    ):
        sent = [
            http.post("/v1/responses", json={"model": "a", "input": "hi"}, headers={"Idempotency-Key": "k"})
            for _ in range(150)
        ]
        answers = await asyncio.gather(*sent)

    assert ({answer.status_code for answer in answers}, len({answer.json()["id"] for answer in answers})) == ({200}, 1)


async def test_a_run_continues_when_its_client_leaves() -> None:
    gate = Gate()
    model = GatedModel([asks(("c1", "work", {})), "No more actions.", "Done."])
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=[gated_tool(gate)])) as runs:
        async with runs.run(await spec_of(runs.host, keyed("k", session_id="s")), streams=True):
            await gate.reached()
        again = await start_run(runs.host, keyed("k", session_id="s"))
        gate.open()
        outcome = await outcome_of(again)

    assert (outcome.text, outcome.status, gate.cancelled) == ("Done.", "COMPLETED", False)


async def test_callers_do_not_share_keys() -> None:
    model = GatedModel(["One.", "Two."])
    async with asyncio.timeout(30), running(create_graph_agent(model)) as runs:
        specs = [await spec_of(runs.host, keyed("k"), Caller(name)) for name in ("ana", "bo")]
        texts = [(await outcome_of(runs_of)).text for runs_of in [await _started(runs, spec) for spec in specs]]

    assert (sorted(texts), specs[0].thread == specs[1].thread) == (["One.", "Two."], False)


async def _started(runs: Runs, spec: Any) -> Any:
    from graph_agent.interfaces.server.chat.run import ServerRun

    return ServerRun(runs.host, spec, runs.metrics, streams=False)


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.http() as client:
        yield client


def test_a_different_request_with_the_same_key_is_refused(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "different", "X-Session-Id": "idempotent"}
    http.post(CHAT, json=body("one"), headers=headers)

    refused = http.post(CHAT, json=body("two"), headers=headers)

    assert (refused.status_code, refused.json()["error"]["code"], refused.headers.get("retry-after")) == (
        422,
        "idempotency_key_reused",
        None,
    )
    assert [event["content"] for event in events(http, "idempotent", type="user_message")] == ["one"]


@pytest.mark.parametrize("key", ["", "x" * 256, '""'])
def test_an_invalid_key_is_refused(http: httpx.Client, key: str) -> None:
    refused = http.post(CHAT, json=body("one"), headers={"Idempotency-Key": key})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key")


def test_clients_of_openai_get_the_same_answer_whole_and_streamed(openai_client: openai.OpenAI) -> None:
    def ask(**options: Any) -> Any:
        headers = {"Idempotency-Key": '"one"'}
        messages: Any = [{"role": "user", "content": "hello"}]
        return openai_client.chat.completions.with_raw_response.create(
            model="parrot", messages=messages, extra_headers=headers, **options
        )

    first, again, streamed = ask(), ask(), ask(stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed.parse() if chunk.choices)

    assert [each.headers.get("idempotent-replayed") for each in (first, again, streamed)] == [None, "true", "true"]
    assert (again.parse().choices, again.parse().usage, text) == (
        first.parse().choices,
        first.parse().usage,
        first.parse().choices[0].message.content,
    )


def test_clients_of_anthropic_get_the_same_answer_whole_and_streamed(anthropic_client: anthropic.Anthropic) -> None:
    given: Any = {
        "model": "parrot",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "hello"}],
        "extra_headers": {"Idempotency-Key": "anthropic"},
    }
    first, again = anthropic_client.messages.create(**given), anthropic_client.messages.create(**given)
    with anthropic_client.messages.stream(**given) as stream:
        streamed = stream.get_final_message()

    messages: list[Any] = [first, again, streamed]
    texts = [message.content[0].text for message in messages]
    assert (texts, again.usage, streamed.usage) == (["You said: hello"] * 3, first.usage, first.usage)


def test_requests_whose_server_is_killed_are_completed_once_by_another_server(tmp_path: Path) -> None:
    db = ["--db", f"sqlite:///{tmp_path / 'sessions.db'}"]
    folders = [tmp_path / name for name in ("a", "b", "in a session", "alone", "a2a")]
    for folder in folders:
        folder.mkdir()
    sessions: list[dict[str, str]] = [{"X-Session-Id": "s"}, {}]
    posted: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"json": body(slow_tool_orders(folder)), "headers": {"Idempotency-Key": "k", **session}})
        for folder, session in zip(folders[2:4], sessions, strict=True)
    ]
    parts = [{"text": slow_tool_orders(folders[4])}]
    message = {"messageId": "m", "contextId": "talk", "role": "ROLE_USER", "parts": parts}
    posted.append(("/a2a/rest/message:send", {"json": {"message": message}, "headers": {"A2A-Version": "1.0"}}))
    with ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(6))
        first, second = [stack.enter_context(serving(folder, *db)) for folder in folders[:2]]
        clients = [stack.enter_context(server.http()) for server in (first, second)]
        lost = [pool.submit(clients[0].post, path, timeout=120, **request) for path, request in posted]
        for folder in folders[2:]:
            wait_for_slow_tool(folder)
        waiting = [pool.submit(clients[1].post, path, timeout=120, **request) for path, request in posted]
        first.kill_all()
        for folder in folders[2:]:
            (folder / "go").touch()
        responses = [each.result().json() for each in waiting]
        repeated = [clients[1].post(path, timeout=120, **request).json() for path, request in posted]
        given = [len(events(clients[1], session, type="user_message")) for session in ("s", "talk")]

    texts, texts_again = [
        [*(each["choices"][0]["message"]["content"] for each in found[:2]), _artifact(found[2])]
        for found in (responses, repeated)
    ]
    assert ([type(each.exception()) for each in lost], given) == ([httpx.RemoteProtocolError] * 3, [1, 1])
    assert texts_again == texts
    assert [(text.count("You said"), text.count("the value of k")) for text in texts] == [(1, 1)] * 3


def _artifact(response: dict[str, Any]) -> str:
    """The text of a task's answer."""
    return "".join(part["text"] for part in response["task"]["artifacts"][0]["parts"])
