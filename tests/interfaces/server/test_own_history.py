"""Sessions of clients that send their whole history with each request: it is compared with that of the session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import RemoveMessage

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from tests.interfaces.server.parrot import ask as question
from tests.interfaces.server.parrot import look_up, make, wait_for
from tests.support.doors import PLAIN, Case, agent_of, cases, doors_of, frames_in

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
DOORS = [(CHAT, True), (CHAT, False), (MESSAGES, False), (MESSAGES, True), (RESPONSES, True), (RESPONSES, False)]
"""Paths, each with whether the answer is streamed; `make test` runs the first of each path."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Client:
    """A client that sends its whole history with each request, and names one session in the header.

    Args:
        http: The server.
        door: The path of its requests, and whether it streams.
    """

    def __init__(self, http: httpx.AsyncClient, door: tuple[str, bool]) -> None:
        self.http = http
        self._path, self._stream = door
        self.messages: list[dict[str, Any]] = []
        self.answers: list[tuple[str, bool]] = []
        """Text of each answer, empty for an error, and whether it belongs to the session."""

    async def send(self, *messages: str | dict[str, Any], key: str | None = None, **fields: Any) -> bool:
        """Send the history and new messages; append the answer; return whether there is one."""
        self.messages += [user(each) if isinstance(each, str) else each for each in messages]
        content = {"input" if self._path == RESPONSES else "messages": self.messages}
        needed = {"max_tokens": 99} if self._path == MESSAGES else {}
        body = {"model": "agent", "stream": self._stream, **content, **needed, **fields}
        headers = {"x-session-id": "s", **({"idempotency-key": key} if key else {})}
        given = await self.http.post(self._path, json=body, headers=headers)
        frames = frames_in(given.text) if self._stream else [given.json()]
        failed = given.status_code != 200 or any("error" in frame for frame in frames if self._path != RESPONSES)
        answer = [] if failed else self._answer(frames)
        self.messages += answer
        contents = [each.get("content") or "" for each in answer]
        texts = [each if isinstance(each, str) else "".join(part.get("text", "") for part in each) for each in contents]
        self.answers.append(("".join(texts), given.headers.get("x-session-id") == "s"))
        return bool(answer)

    def _answer(self, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
        last = frames[-1]
        if self._path == RESPONSES:
            response = last["response"] if self._stream else last
            return list(response["output"]) if response["status"] != "failed" else []
        if not self._stream:
            return [last["choices"][0]["message"] if self._path == CHAT else assistant(last["content"])]
        deltas = [frame["delta"] for frame in frames if frame.get("type") == "content_block_delta"]
        deltas += [choice["delta"] for frame in frames for choice in frame.get("choices", ())]
        return [assistant("".join(delta.get("text") or delta.get("content") or "" for delta in deltas))]

    def forget(self, inputs: int = 1) -> None:
        """Remove the newest inputs from the history, with all that follows them."""
        starts = [at for at, each in enumerate(self.messages) if each.get("role") == "user"]
        del self.messages[[*starts, len(self.messages)][-1 - inputs] :]

    async def inputs(self) -> list[str]:
        """The inputs of the session."""
        events = (await self.http.get("/memory/sessions/s/events", params={"type": "user_message"})).json()["events"]
        return [event["content"] for event in events]


@asynccontextmanager
async def client_of(graph: CompiledAgentGraph, door: tuple[str, bool], case: Case = PLAIN) -> AsyncIterator[Client]:
    async with doors_of(graph, case) as (_, http):
        yield Client(http, door)


def parrot(**options: Any) -> CompiledAgentGraph:
    """An agent whose answers list the inputs that its model received."""
    tools = [look_up, question, wait_for]
    graph = create_graph_agent(make(), tools=tools, config=LoopConfig(model_retries=0), **options)
    assert isinstance(graph, CompiledAgentGraph)
    return graph


def echo(*texts: str) -> str:
    """The parrot's answer."""
    return "You said: " + " / ".join(texts)


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["yes", "no"])), min_size=2, max_size=6)
"""Numbers of inputs that a client removes from its history, each with its next input."""


@given(st.sampled_from(DOORS), STEPS)
@example((CHAT, False), [(0, "yes"), (0, "yes"), (1, "yes")])
@example((CHAT, True), [(0, "yes"), (0, "no"), (1, "no"), (0, "yes")])
@example((MESSAGES, False), [(0, "yes"), (0, "no"), (1, "yes"), (1, "no"), (0, "yes")])
@example((MESSAGES, True), [(0, "yes"), (0, "yes"), (0, "no"), (2, "no")])
@example((RESPONSES, False), [(0, "yes"), (0, "no"), (1, "yes"), (0, "no")])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_only_a_continued_history_adds_to_the_session(door: tuple[str, bool], steps: list[tuple[int, str]]) -> None:
    async def run() -> None:
        # Every answer is the same, so that only whole histories differ.
        model = ScriptedChatModel(["OK"], cycle=True)
        sent: list[str] = []
        kept: list[str] = []
        async with client_of(create_graph_agent(model), door) as client:
            for removed, text in steps:
                sent = sent[: len(sent) - removed]
                client.messages = [each for before in sent for each in (user(before), assistant("OK"))]
                continues = not sent or sent == kept
                kept, sent = [*kept, text] if continues else kept, [*sent, text]
                await client.send(text)
                received = [each.text for each in model.requests[-1].messages if each.type == "human"]
                assert (client.answers[-1], received, await client.inputs()) == (
                    ("OK", continues),
                    kept if continues else sent,
                    kept,
                )

    asyncio.run(run())


@given(st.sampled_from(DOORS), cases())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_client_that_returns_what_it_received_continues_its_session(door: tuple[str, bool], case: Case) -> None:

    async def run() -> None:
        async with client_of(agent_of(case)[0], door, case) as client:
            for text in ("one", "two"):
                has_answer = await client.send(text)
                while has_answer and re.search("for approval:|mcp_approval", str(client.messages[-1])):
                    has_answer = await client.send("approve")
            left = [answer for answer, is_kept in client.answers if answer and not is_kept]
            assert (left, await client.inputs()) == ([], ["one", "two"])

    asyncio.run(run())


@pytest.mark.parametrize("door", DOORS)
async def test_a_repeated_or_edited_request_is_answered_from_its_own_history(door: tuple[str, bool]) -> None:
    async with client_of(parrot(), door) as client:
        for text in ("one", "two", "three"):
            await client.send(text)
        for removed, text in ((1, "three"), (1, "3"), (2, "2"), (0, "four")):
            client.forget(removed)
            await client.send(text)
        inputs = await client.inputs()

    assert (client.answers, inputs) == (
        [
            (echo("one"), True),
            (echo("one", "two"), True),
            (echo("one", "two", "three"), True),
            (echo("one", "two", "three"), False),
            (echo("one", "two", "3"), False),
            (echo("one", "2"), False),
            (echo("one", "2", "four"), False),
        ],
        ["one", "two", "three"],
    )


@pytest.mark.parametrize("door", DOORS)
async def test_a_history_that_started_the_session_is_part_of_it(door: tuple[str, bool]) -> None:
    async with client_of(parrot(), door) as client:
        client.messages = [assistant("Hello."), user("zero"), assistant("Yes."), assistant("Well.")]
        await client.send("one")
        await client.send("two")
        client.forget()
        client.messages[1] = user("0")
        await client.send("two")
        inputs = await client.inputs()

    assert (client.answers, inputs) == (
        [(echo("zero", "one"), True), (echo("zero", "one", "two"), True), (echo("0", "one", "two"), False)],
        ["one", "two"],
    )


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", ["kept", "left out", "sent again"])
async def test_a_failed_input_does_not_end_the_session(door: tuple[str, bool], case: str) -> None:
    async with client_of(parrot(), door) as client:
        await client.send("one")
        await client.send("!fail auth")
        if case != "kept":
            client.forget()
        if case == "sent again":
            await client.send("!fail auth")
        await client.send("two")
        await client.send("three")
        inputs = await client.inputs()

    failed = ["!fail auth"] * (2 if case == "sent again" else 1)
    assert (client.answers, inputs) == (
        [
            (echo("one"), True),
            *[("", False)] * len(failed),
            (echo("one", *failed, "two"), True),
            (echo("one", *failed, "two", "three"), True),
        ],
        ["one", *failed, "two", "three"],
    )


class FailingOnce(AgentMiddleware[Any, Any, Any]):
    """Fails the second input."""

    def __init__(self) -> None:
        super().__init__()
        self.tools = []
        self._inputs = 0

    def before_agent(self, state: Any, runtime: Any) -> None:
        self._inputs += 1
        if self._inputs == 2:
            raise ValueError("not now")


@pytest.mark.parametrize("door", DOORS)
async def test_a_failed_input_that_equals_an_answered_one_is_sent_again(door: tuple[str, bool]) -> None:
    async with client_of(parrot(hooks=[FailingOnce()]), door) as client:
        for text in ("one", "one"):
            await client.send(text)
        client.forget()
        await client.send("one")
        await client.send("two")
        inputs = await client.inputs()

    assert (client.answers, inputs) == (
        [
            (echo("one"), True),
            ("", False),
            (echo("one", "one", "one"), True),
            (echo("one", "one", "one", "two"), True),
        ],
        ["one", "one", "one", "two"],
    )


@pytest.mark.parametrize("door", DOORS)
async def test_a_stopped_input_does_not_end_the_session(door: tuple[str, bool]) -> None:
    order = '!call wait_for {"file": "/nowhere/to/wait/for"}'
    async with asyncio.timeout(60), client_of(parrot(), door) as client:
        running = asyncio.create_task(client.send(order))
        while not (await client.http.get("/sessions/s")).is_success or not await client.inputs():
            await asyncio.sleep(0)
        await client.http.post("/sessions/s/abort")
        await running
        await client.send("next")
        inputs = await client.inputs()

    assert (client.answers[1:], inputs) == ([(echo(order, "next"), True)], [order, "next"])


@pytest.mark.parametrize("door", DOORS)
async def test_the_answer_to_a_question_is_part_of_the_history(door: tuple[str, bool]) -> None:
    order = '!call ask {"question": "Why?"}'
    async with client_of(parrot(), door) as client:
        for text in ("one", order):
            await client.send(text)
        client.forget()
        await client.send("two")
        client.forget()
        await client.send(user(order), assistant("I call.\n\nWhy?"), user("So."))
        await client.send("next")
        inputs = await client.inputs()

    # Some doors have one text, others two.
    answers = [(text.replace("\n\n", ""), is_kept) for text, is_kept in client.answers]
    assert (answers, inputs) == (
        [
            (echo("one"), True),
            ("I call.Why?", True),
            # The history without the question is that of another conversation.
            (echo("one", "two"), False),
            (f"{echo('one', order)}; ask said: the answer is So.", True),
            (echo("one", order, "next"), True),
        ],
        ["one", order, "next"],
    )


PAINT = {"name": "paint", "parameters": {"type": "object", "properties": {}}}
TOOL = {CHAT: {"type": "function", "function": PAINT}, MESSAGES: {"name": "paint", "input_schema": PAINT["parameters"]}}


def result_of(path: str, message: dict[str, Any]) -> dict[str, Any]:
    """The result of the call in a message."""
    if path == CHAT:
        return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "painted"}
    [id_] = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": "painted"}]}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_result_that_the_session_has_is_answered_from_the_own_history(path: str) -> None:
    order, tools = "!call paint {}", [TOOL[path]]
    async with client_of(parrot(), (path, False)) as client:
        await client.send("one", tools=tools)
        await client.send(order, tools=tools)
        await client.send(result_of(path, client.messages[-1]), tools=tools)
        await client.send("next", tools=tools)
        del client.messages[-3:]
        await client.send(tools=tools)
        inputs = await client.inputs()

    painted = f"{echo('one', order)}; paint said: painted"
    assert (client.answers, inputs) == (
        [
            (echo("one"), True),
            ("I call.", True),
            (painted, True),
            (echo("one", order, "next"), True),
            (painted.replace("paint said", "it said"), False),
        ],
        ["one", order, "next"],
    )


class Forgetful(AgentMiddleware[Any, Any, Any]):
    """Removes the oldest of the session's messages."""

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        old = state["messages"][:-1]
        return {"messages": [RemoveMessage(id=message.id) for message in old]} if old else None


@pytest.mark.parametrize("door", DOORS)
async def test_messages_that_middleware_removes_stay_part_of_the_history(door: tuple[str, bool]) -> None:
    async with client_of(parrot(hooks=[Forgetful()]), door) as client:
        for removed, text in ((0, "one"), (0, "two"), (0, "three"), (2, "2")):
            client.forget(removed)
            await client.send(text)
        inputs = await client.inputs()

    assert (client.answers, inputs) == (
        [(echo("one"), True), (echo("two"), True), (echo("three"), True), (echo("2"), False)],
        ["one", "two", "three"],
    )


@pytest.mark.parametrize("door", DOORS)
async def test_a_repeated_key_gets_the_answer_that_was_given_from_the_own_history(door: tuple[str, bool]) -> None:
    graph = create_graph_agent(ScriptedChatModel(["a", "b", "c", "d"]))
    async with client_of(graph, door) as client:
        for text in ("one", "two"):
            await client.send(text)
        for key in ("k", "k", "other"):
            client.forget()
            await client.send("two", key=key)
        inputs = await client.inputs()

    assert (client.answers, inputs) == (
        [("a", True), ("b", True), ("c", False), ("c", False), ("d", False)],
        ["one", "two"],
    )


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_decision_before_a_failure_is_no_input(path: str) -> None:
    class FailingAfterTheCall(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> None:
            if state["messages"][-1].type == "tool":
                raise ValueError("not now")

    order = '!call look_up {"key": "a"}'
    graph = create_graph_agent(
        make(), tools=[look_up], hooks=[FailingAfterTheCall()], config=LoopConfig(model_retries=0, approve=["look_up"])
    )
    assert isinstance(graph, CompiledAgentGraph)
    async with client_of(graph, (path, False)) as client:
        for text in (order, "approve", "approve", "two"):
            await client.send(text)
        inputs = await client.inputs()

    assert ([text.partition(" ")[0] for text, _ in client.answers], inputs) == (
        ["I", "This", "", "You"],
        [order, "two"],
    )
