"""Follow-ups over HTTP: the request and its follow-up each have their own answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from a2a.types import SubscribeToTaskRequest
from langchain_core.messages import HumanMessage

from graph_agent import SessionMemory, create_graph_agent
from tests.interfaces.server.hosting import MINE, ask, outcome_of, running, sessions_of, spec_of
from tests.interfaces.server.process import Served, eventually, serving
from tests.support.a2a_client import a2a_client, message_request
from tests.support.agents import asks
from tests.support.chat_client import body, chat, events, wait_for_event
from tests.support.gates import Gate, GatedModel, gated_tool


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two processes on one database."""
    with serving(tmp_path_factory.mktemp("workers"), "--workers", "2") as server:
        yield server


def openai_whole(served: Served, session: str, text: str) -> str:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(**body(text), extra_headers={"X-Session-Id": session})
    return str(answer.choices[0].message.content)


def openai_streamed(served: Served, session: str, text: str) -> str:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(**body(text), stream=True, extra_headers={"X-Session-Id": session})
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def anthropic_whole(served: Served, session: str, text: str) -> str:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(**body(text), max_tokens=1000, extra_headers={"X-Session-Id": session})
    return "".join(block.text for block in answer.content if block.type == "text")


def anthropic_streamed(served: Served, session: str, text: str) -> str:
    with (
        anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client,
        client.messages.stream(**body(text), max_tokens=1000, extra_headers={"X-Session-Id": session}) as stream,
    ):
        return "".join(stream.text_stream)


WAYS = [openai_whole, openai_streamed, anthropic_whole, anthropic_streamed]


def dialogue(http: httpx.Client, session: str) -> list[tuple[str, str]]:
    """Questions and answers of a session, oldest first."""
    found = events(http, session, type=["user_message", "agent_response"])
    return [(event["type"], event["content"]) for event in found]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("send", WAYS, ids=lambda send: send.__name__)
def test_the_first_request_receives_its_own_answer(
    workers: Served, tmp_path: Path, send: Callable[[Served, str, str], str]
) -> None:
    go = tmp_path / "go"
    session, first = send.__name__, f'!call wait_for {{"file": "{go}"}}'
    with workers.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(send, workers, session, first)
        wait_for_event(http, session, "tool_call")
        for text in ("And then?", "And after that?"):
            http.post(f"/sessions/{session}/follow_up", json={"text": text})
        go.touch()
        answer = asked.result()
        wait_for_event(http, session, "agent_response", 3)
        messages = dialogue(http, session)

    own = f"You said: {first}; wait_for said: {go} is there"
    # In Anthropic's format, each message is a block.
    begun = "I call.\n\n" if send.__name__.startswith("openai") else "I call."
    assert (answer, messages) == (
        begun + own,
        [
            ("user_message", first),
            ("agent_response", own),
            ("user_message", "And then?"),
            ("agent_response", f"You said: {first} / And then?"),
            ("user_message", "And after that?"),
            ("agent_response", f"You said: {first} / And then? / And after that?"),
        ],
    )


def test_a_request_is_answered_before_its_follow_up(served: Served, tmp_path: Path) -> None:
    go, then = tmp_path / "go", tmp_path / "then"
    with served.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat, http, "early", f'!call wait_for {{"file": "{go}"}}', stream=True)
        wait_for_event(http, "early", "tool_call")
        http.post("/sessions/early/follow_up", json={"text": f'!call wait_for {{"file": "{then}"}}'})
        go.touch()
        first = asked.result().text
        wait_for_event(http, "early", "tool_call", 2)
        during = [http.get("/sessions/early").json()["status"], chat(http, "early", "me too").status_code]
        then.touch()
        wait_for_event(http, "early", "agent_response", 2)

    assert (str(go) in first, str(then) in first, during) == (True, False, ["RUNNING", 429])


def test_a_follow_up_is_aborted_and_its_session_goes_on(served: Served, tmp_path: Path) -> None:
    go, never = tmp_path / "go", tmp_path / "never"
    with served.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat, http, "ended", f'!call wait_for {{"file": "{go}"}}')
        wait_for_event(http, "ended", "tool_call")
        http.post("/sessions/ended/follow_up", json={"text": f'!call wait_for {{"file": "{never}"}}'})
        go.touch()
        asked.result()
        wait_for_event(http, "ended", "tool_call", 2)
        http.post("/sessions/ended/abort")
        eventually(lambda: http.get("/sessions/ended").json()["status"] == "ABORTED")
        eventually(lambda: chat(http, "ended", "go on").status_code == 200)

        assert http.get("/sessions/ended").json()["status"] == "COMPLETED"


def test_a_resumed_session_returns_its_own_answer(served: Served, tmp_path: Path) -> None:
    paint = {"type": "function", "function": {"name": "paint"}}
    go = tmp_path / "go"
    with served.http() as http:
        chat(http, "answers", '!call paint {"color": "red"}', tools=[paint])
        http.post("/sessions/answers/follow_up", json={"text": f"!wait {go}"})
        done = http.post("/sessions/answers/resume", json={"answer": {"content": "painted", "status": "success"}})
        go.touch()
        wait_for_event(http, "answers", "agent_response", 2)

    assert (done.json()["status"], done.json()["answer"].endswith("paint said: painted")) == ("COMPLETED", True)


def test_a_running_follow_up_stops_with_the_server_and_resumes(tmp_path: Path) -> None:
    go, then = tmp_path / "go", tmp_path / "then"
    with serving(tmp_path) as server, server.http() as http, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat, http, "s", f'!call wait_for {{"file": "{go}"}}')
        wait_for_event(http, "s", "tool_call")
        http.post("/sessions/s/follow_up", json={"text": f'!call wait_for {{"file": "{then}"}}'})
        go.touch()
        asked.result()
        wait_for_event(http, "s", "tool_call", 2)
        server.term()
        then.touch()
        server.process.wait(60)
    with serving(tmp_path) as server, server.http() as http:
        resumed = http.post("/sessions/s/resume").json()
        kinds = [event["type"] for event in events(http, "s", type=["user_message", "tool_result", "agent_response"])]

    assert (resumed["status"], str(then) in resumed["answer"]) == ("COMPLETED", True)
    assert kinds == ["user_message", "tool_result", "agent_response"] * 2


async def test_a_task_gets_the_answer_to_its_own_message(served: Served, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with served.http() as http:
        async with a2a_client(served.url, "none") as client:
            begun = aiter(client.send_message(message_request(f'!call wait_for {{"file": "{go}"}}', context_id="task")))
            task_id = (await anext(begun)).task.id
            await asyncio.to_thread(wait_for_event, http, "task", "tool_call")
            await asyncio.to_thread(http.post, "/sessions/task/follow_up", json={"text": "And then?"})
            go.touch()
            pieces: dict[str, str] = {}
            async for event in begun:
                for part in event.artifact_update.artifact.parts:
                    before = pieces.get(task_id, "") if event.artifact_update.append else ""
                    pieces[task_id] = before + part.text
            await asyncio.to_thread(wait_for_event, http, "task", "agent_response", 2)
            with pytest.raises(Exception, match="terminal"):
                await anext(aiter(client.subscribe(SubscribeToTaskRequest(id=task_id))))
        messages = dialogue(http, "task")

    assert ("And then?" in pieces[task_id], pieces[task_id], messages[2][1]) == (False, messages[1][1], "And then?")


async def test_a_follow_up_has_the_options_of_the_run_before_it_and_not_what_belongs_to_one_request() -> None:
    gate = Gate()
    model = GatedModel([asks(("1", "work", {})), "No more actions.", "Done.", "No more actions.", "Next."])
    graph = create_graph_agent(model, tools=[gated_tool(gate)])
    async with asyncio.timeout(30), running(graph) as runs:
        options = {"temperature": 0.5, "client_tool_choice": None}
        first = ask(HumanMessage("hi"), client_tools=[MINE], session_id="s", instructions="In verse.", options=options)
        async with runs.run(await spec_of(runs.host, first), streams=True) as begun:
            await gate.reached()
            await (await sessions_of(runs).session("s")).follow_up("And then?")
            gate.open()
            outcome = await outcome_of(begun)
        assert begun.following is not None
        await begun.following
        history = await SessionMemory(runs.host.kept).get_session_events("s")

    offered: list[Any] = [[tool["function"]["name"] for tool in request.tools] for request in model.requests]
    answers = [event["content"] for event in history if event["type"] == "agent_response"]
    assert (outcome.text, answers, offered[0], offered[3]) == (
        "Done.",
        ["Done.", "Next."],
        ["work", "mine"],
        ["work"],
    )
    assert ["In verse." in str(request.messages[0].content) for request in model.requests] == [True] * 5
