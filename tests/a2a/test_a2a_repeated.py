"""Messages that a client sends again: each is run once in its conversation."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import GetTaskRequest, Message, SendMessageRequest, Task
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.server.settings import ApiKey, ServerSettings
from tests.support.a2a_client import a2a_client, artifact_texts, message_request, send, state_name
from tests.support.a2a_servers import serving_ours
from tests.support.agents import ECHO_SCRIPT, asks, echo
from tests.support.approvals import Desk


async def last_task(client: Any, request: SendMessageRequest) -> Task:
    """Send a request, and return its task as the server stores it."""
    id_ = ""
    async for event in client.send_message(request):
        id_ = event.task.id or id_
    found: Task = await client.get_task(GetTaskRequest(id=id_))
    return found


def again(request: SendMessageRequest, text: str) -> SendMessageRequest:
    """The request with another text."""
    other = SendMessageRequest()
    other.CopyFrom(request)
    other.message.parts[0].text = text
    return other


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_repeated_message_gets_the_first_answer(streaming: bool) -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], checkpointer=InMemorySaver())
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=streaming) as client:
            request = message_request("Echo hello.", context_id="talk")
            tasks = [await last_task(client, request) for _ in range(2)]
            refused = await last_task(client, again(request, "Echo bye."))

    assert [(state_name(task), artifact_texts(task)) for task in tasks] == [
        ("TASK_STATE_COMPLETED", ["The echo returned: hello"])
    ] * 2
    assert (state_name(refused), "belongs to a different input" in str(refused.status.message)) == (
        "TASK_STATE_REJECTED",
        True,
    )


async def test_a_repeated_answer_to_a_question_is_used_once() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "No more actions.", "Done.")
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False) as client:
            asked = message_request("go", context_id="talk")
            waiting = [await send(client, asked) for _ in range(2)]
            approved = message_request("approve", waiting[0])
            tasks = [await send(client, approved) for _ in range(2)]
            # A client that has lost the task repeats the answer in the conversation.
            bare = Message()
            bare.CopyFrom(approved.message)
            bare.task_id = ""
            tasks.append(await send(client, SendMessageRequest(message=bare)))

    assert ([state_name(task) for task in waiting], desk.ran) == (["TASK_STATE_INPUT_REQUIRED"] * 2, ["wrote a"])
    assert [(state_name(task), artifact_texts(task)) for task in tasks] == [("TASK_STATE_COMPLETED", ["Done."])] * 3


async def test_a_repeated_first_message_of_a_caller_is_run_once_in_one_conversation() -> None:
    keys = tuple(ApiKey(name=name, key=SecretStr(f"{name}-0123456789abcdef")) for name in ("anna", "bert"))
    model = ScriptedChatModel([f"Answer {number}." for number in range(9)])
    graph = create_graph_agent(model, checkpointer=InMemorySaver())
    first, other = message_request("Hello."), again(message_request("Hello."), "Bye.")
    found: list[tuple[str, list[str]]] = []
    with serving_ours(graph, settings=ServerSettings(keys=keys)) as url:
        for name, sent in (("anna", first), ("anna", first), ("anna", other), ("bert", first)):
            async with a2a_client(url, f"{name}-0123456789abcdef", streaming=False) as client:
                task = await send(client, sent)
                found.append((task.context_id, artifact_texts(task)))

    assert [texts for _, texts in found] == [["Answer 0."], ["Answer 0."], ["Answer 1."], ["Answer 2."]]
    assert [len({id_ for id_, _ in found}), found[1]] == [3, found[0]]


async def test_a_repeated_first_message_of_an_anonymous_caller_begins_another_conversation() -> None:
    graph = create_graph_agent(ScriptedChatModel(["One.", "Two."]), checkpointer=InMemorySaver())
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=False) as client:
            tasks = [await send(client, message_request("Hello.")) for _ in range(2)]

    assert ([artifact_texts(task) for task in tasks], len({task.context_id for task in tasks})) == (
        [["One."], ["Two."]],
        2,
    )
