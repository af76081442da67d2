"""Which messages a task accepts by the rules of A2A 1.0 and 0.3, over every binding, blocking and streamed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import Client
from a2a.types import GetTaskRequest, Role, SendMessageRequest, Task
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.interfaces.server.a2a.store import open_stores
from graph_agent.persistence import open_saver
from tests.support.a2a_agents import LOOKING, HeldTool, book, weather_agent
from tests.support.a2a_client import WAYS, a2a_client, artifact_texts, message_request, refusal, send, state_name
from tests.support.a2a_servers import serving_here, serving_ours
from tests.support.agents import asks, echo

HELLO: dict[str, Any] = {
    "1.0": {
        "method": "SendMessage",
        "params": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}},
    },
    "0.3": {
        "method": "message/send",
        "params": {
            "message": {
                "kind": "message",
                "messageId": "m",
                "role": "user",
                "parts": [{"kind": "text", "text": "hi"}],
            }
        },
    },
}
"""A request with the text "hello", in each version's JSON-RPC."""
BOOKING = [asks(("1", "book", {"room": "12"})), "Booked."]


def to_task(text: str, task_id: str, **fields: Any) -> SendMessageRequest:
    """A message with a task id, and no context id by default."""
    return message_request(text, task_id=task_id, **fields)


async def came_to(client: Client, request: SendMessageRequest) -> Task:
    """The outcome of a request's task."""
    task_id = request.message.task_id
    async for _ in client.send_message(request):
        pass
    return await client.get_task(GetTaskRequest(id=task_id))


@pytest.mark.parametrize(("version", "binding", "streaming"), WAYS)
async def test_an_answer_with_only_a_task_id_is_accepted(version: str, binding: str, streaming: bool) -> None:
    graph = weather_agent(BOOKING, tools=[book])
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=streaming, version=version, binding=binding) as client:
            async with a2a_client(url, streaming=False) as asking:
                waiting = await send(asking, message_request("Book room 12", context_id="talk"))
            done = await came_to(client, to_task("yes", waiting.id))

    history = [(one.context_id, [part.text for part in one.parts]) for one in done.history]
    results = [event["content"] for event in await Session(graph, "talk").events() if event["type"] == "tool_result"]
    assert (state_name(done), artifact_texts(done), done.context_id, results, history) == (
        "TASK_STATE_COMPLETED",
        ["Booked."],
        "talk",
        ["12: yes"],
        [("talk", ["Book room 12"]), ("talk", ["Book 12?"]), ("talk", ["yes"])],
    )


async def test_an_answer_with_only_a_task_id_is_accepted_after_a_restart(tmp_path: Path) -> None:
    url_of_db = f"sqlite:///{tmp_path}/agent.db"
    task = Task()
    for script, text in ((BOOKING[:1], "Book room 12"), (BOOKING[1:], "yes")):
        async with open_saver(url_of_db) as saver, open_stores(url_of_db) as stores:
            graph = create_graph_agent(ScriptedChatModel(script), tools=[book], checkpointer=saver)
            async with serving_here(graph, stores=stores) as url, a2a_client(url, streaming=False) as client:
                request = to_task(text, task.id) if task.id else message_request(text)
                task = await send(client, request)

    assert (state_name(task), artifact_texts(task)) == ("TASK_STATE_COMPLETED", ["Booked."])


@pytest.mark.parametrize(("version", "binding", "streaming"), WAYS)
async def test_a_task_of_another_conversation_is_refused(version: str, binding: str, streaming: bool) -> None:
    with serving_ours(weather_agent(BOOKING, tools=[book])) as url:
        async with a2a_client(url, streaming=streaming, version=version, binding=binding) as client:
            async with a2a_client(url, streaming=False) as asking:
                waiting = await send(asking, message_request("Book room 12", context_id="talk"))
            with pytest.raises(refusal(InvalidParamsError, version, binding)):
                await came_to(client, to_task("yes", waiting.id, context_id="another"))
            still = await client.get_task(GetTaskRequest(id=waiting.id))

    assert state_name(still) == "TASK_STATE_INPUT_REQUIRED"


@pytest.mark.parametrize(("version", "binding", "streaming"), WAYS)
async def test_messages_to_unknown_and_finished_tasks_are_refused(version: str, binding: str, streaming: bool) -> None:
    with serving_ours(weather_agent(["Hello."], tools=[])) as url:
        async with a2a_client(url, streaming=streaming, version=version, binding=binding) as client:
            async with a2a_client(url, streaming=False) as asking:
                ended = await send(asking, message_request("hi"))
            with pytest.raises(refusal(TaskNotFoundError, version, binding)):
                await came_to(client, to_task("yes", "never-was"))
            for fields in ({}, {"context_id": ended.context_id}):
                with pytest.raises(refusal(UnsupportedOperationError, version, binding)):
                    await came_to(client, to_task("yes", ended.id, **fields))
            kept = await client.get_task(GetTaskRequest(id=ended.id))

    assert (state_name(kept), artifact_texts(kept), len(kept.history)) == ("TASK_STATE_COMPLETED", ["Hello."], 1)


@pytest.mark.parametrize(("version", "binding", "streaming"), WAYS)
async def test_a_message_of_an_agent_is_refused(version: str, binding: str, streaming: bool) -> None:
    graph = weather_agent(["Never said."])
    request = message_request("hi", context_id="talk")
    request.message.role = Role.ROLE_AGENT
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=streaming, version=version, binding=binding) as client:
            with pytest.raises(refusal(InvalidParamsError, version, binding)):
                await send(client, request)

    assert await Session(graph, "talk").events() == []


@pytest.mark.parametrize(("version", "binding", "streaming"), WAYS)
async def test_a_message_to_a_running_task_is_refused_at_once(version: str, binding: str, streaming: bool) -> None:
    held = HeldTool()
    graph = weather_agent([asks(("1", "hold", {})), "Done.", "Never said."], tools=[held.tool])
    with serving_ours(graph) as url:
        async with (
            asyncio.timeout(60),
            a2a_client(url) as first,
            a2a_client(url, streaming=streaming, version=version, binding=binding) as second,
        ):
            working = aiter(first.send_message(message_request("go", context_id="talk")))
            task = (await anext(working)).task
            await held.begun.wait()
            for fields in ({}, {"context_id": "talk"}):
                with pytest.raises(refusal(UnsupportedOperationError, version, binding)) as refused:
                    await came_to(second, to_task("more", task.id, **fields))
                by_status = (version, binding) == ("0.3", "HTTP+JSON")
                assert ("HTTP Error 400" if by_status else "The task is running") in str(refused.value)
            held.let_go.set()
            async for _ in working:
                pass
            kept = await first.get_task(GetTaskRequest(id=task.id))

    inputs = [event["content"] for event in await Session(graph, "talk").events() if event["type"] == "user_message"]
    assert (state_name(kept), artifact_texts(kept), [one.message_id for one in kept.history], inputs) == (
        "TASK_STATE_COMPLETED",
        ["Done."],
        ["m-go"],
        ["go"],
    )


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_second_answer_to_an_interrupt_is_refused(streaming: bool) -> None:
    held = HeldTool()
    script = [asks(("1", "book", {"room": "12"})), asks(("2", "hold", {})), "Booked."]
    graph = weather_agent(script, tools=[book, held.tool])
    with serving_ours(graph) as url:
        async with (
            asyncio.timeout(60),
            a2a_client(url, streaming=streaming) as one,
            a2a_client(url, streaming=streaming) as other,
        ):
            async with a2a_client(url, streaming=False) as asking:
                waiting = await send(asking, message_request("go"))
            answers = [
                asyncio.create_task(came_to(client, to_task(text, waiting.id)))
                for client, text in ((one, "yes"), (other, "no"))
            ]
            # The one that is refused is so at once; the other one's task waits for the tool.
            done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            [refused] = [task.exception() for task in done]
            await held.begun.wait()
            held.let_go.set()
            outcomes = await asyncio.gather(*answers, return_exceptions=True)

    taken = [state_name(outcome) for outcome in outcomes if isinstance(outcome, Task)]
    assert (type(refused), taken) == (UnsupportedOperationError, ["TASK_STATE_COMPLETED"])


async def test_a_follow_up_in_a_tasks_session_is_no_part_of_the_task() -> None:
    held = HeldTool()
    graph = weather_agent([asks(("1", "hold", {})), "Done.", "Next."], tools=[held.tool])
    async with asyncio.timeout(60), serving_here(graph) as url, a2a_client(url) as client:
        talk = Session(graph, "talk")
        working = aiter(client.send_message(message_request("go", context_id="talk")))
        task = (await anext(working)).task
        await held.begun.wait()
        await talk.follow_up("And then?")
        held.let_go.set()
        async for _ in working:
            pass
        kept = await client.get_task(GetTaskRequest(id=task.id))
        while (await talk.events())[-1]["type"] != "status" or len(await answers(talk)) < 2:
            await asyncio.sleep(0.01)

    assert (state_name(kept), artifact_texts(kept), await answers(talk)) == (
        "TASK_STATE_COMPLETED",
        ["Done."],
        ["Done.", "Next."],
    )


async def answers(talk: Session) -> list[Any]:
    return [event["content"] for event in await talk.events() if event["type"] == "agent_response"]


@pytest.mark.parametrize("path", ["/a2a", "/a2a/"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_json_rpc_answers_with_and_without_a_trailing_slash(path: str, version: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, **HELLO[version]}
    with (
        serving_ours(weather_agent(["Hello."], tools=[])) as url,
        httpx.Client(trust_env=False, verify=False, timeout=30) as http,
    ):
        answer = http.post(url + path, json=body, headers={"a2a-version": version})

    assert (answer.status_code, "Hello." in answer.text) == (200, True)


@pytest.mark.parametrize("streaming", [False, True])
async def test_progress_is_not_in_the_history(streaming: bool) -> None:
    script = [LOOKING[0], asks(("2", "book", {"room": "12"})), asks(("3", "echo", {"text": "x"})), "Booked."]
    graph = weather_agent(script, tools=[book, echo])
    with serving_ours(graph, show_outputs=True) as url:
        async with a2a_client(url, streaming=streaming) as client:
            task_id = ""
            async for event in client.send_message(message_request("Book room 12")):
                task_id = event.task.id or event.status_update.task_id or task_id
            answered = await came_to(client, to_task("yes", task_id))
            newest = await client.get_task(GetTaskRequest(id=task_id, history_length=2))

    texts = [[part.text for part in one.parts] for one in answered.history]
    assert (state_name(answered), texts, [one.message_id for one in newest.history][-1:]) == (
        "TASK_STATE_COMPLETED",
        [["Book room 12"], ["Book 12?"], ["yes"]],
        ["m-yes"],
    )


async def test_a_refused_message_to_a_finished_task_leaves_no_queue_open() -> None:
    def queues() -> list[str]:
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        return [name for name in names if name.startswith("EventQueue")]

    async with serving_here(weather_agent(["Hello."])) as url, a2a_client(url, streaming=False) as client:
        ended = await send(client, message_request("hi"))
        # Those of the first message may still be closing.
        before = queues()
        for number in range(3):
            with pytest.raises(UnsupportedOperationError, match="terminal state"):
                await send(client, to_task(f"again {number}", ended.id))
        after = queues()

    assert (state_name(ended), len(after) <= len(before)) == ("TASK_STATE_COMPLETED", True)
