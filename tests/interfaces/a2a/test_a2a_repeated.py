"""Messages that a client sends again: each is run once in its conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.types import GetTaskRequest, ListTasksRequest, Message, SendMessageRequest, Task
from a2a.utils.errors import InvalidParamsError
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.server import ApiKey, ServerSettings
from tests.support.a2a_agents import HeldTool
from tests.support.a2a_client import (
    WAYS,
    WatchedTask,
    a2a_client,
    artifact_texts,
    message_request,
    refusal,
    send,
    state_name,
)
from tests.support.a2a_servers import serving_ours
from tests.support.agents import ECHO_SCRIPT, asks, echo
from tests.support.approvals import Desk


async def tasks_of(url: str, context_id: str) -> list[tuple[str, int]]:
    """State and messages of each task of a conversation, newest first."""
    async with a2a_client(url) as client:
        listed = await client.list_tasks(ListTasksRequest(context_id=context_id))
    return [(state_name(task), len(task.history)) for task in listed.tasks]


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

    assert [(state_name(task), artifact_texts(task)) for task in tasks] == [
        ("TASK_STATE_COMPLETED", ["The echo returned: hello"])
    ] * 2


@pytest.mark.parametrize(("version", "binding", "streaming"), WAYS)
async def test_a_reused_message_id_makes_no_task(version: str, binding: str, streaming: bool) -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], checkpointer=InMemorySaver())
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=streaming, version=version, binding=binding) as client:
            request = message_request("Echo hello.", context_id="talk")
            await last_task(client, request)
            with pytest.raises(refusal(InvalidParamsError, version, binding)) as refused:
                await last_task(client, again(request, "Echo bye."))
        tasks = await tasks_of(url, "talk")

    by_status = (version, binding) == ("0.3", "HTTP+JSON")
    words = "HTTP Error 400" if by_status else "belongs to another message of this conversation"
    assert (words in str(refused.value), tasks) == (True, [("TASK_STATE_COMPLETED", 1)])


@pytest.mark.parametrize(("version", "binding", "streaming"), WAYS)
async def test_a_reused_message_id_without_a_task_leaves_a_question_open(
    version: str, binding: str, streaming: bool
) -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "No more actions.", "Done.")
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False) as asking:
            asked = message_request("go", context_id="talk")
            waiting = await send(asking, asked)
            async with a2a_client(url, streaming=streaming, version=version, binding=binding) as client:
                with pytest.raises(refusal(InvalidParamsError, version, binding)):
                    await last_task(client, again(asked, "approve"))
            before = await tasks_of(url, "talk")
            done = await send(asking, message_request("approve", waiting))

    assert (before, state_name(done), desk.ran) == (
        [("TASK_STATE_INPUT_REQUIRED", 1)],
        "TASK_STATE_COMPLETED",
        ["wrote a"],
    )


async def test_a_repeated_message_that_a_later_one_has_replaced_makes_no_task() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "Done.")
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False) as client:
            asked = message_request("go", context_id="talk")
            await send(client, asked)
            await send(client, message_request("Leave it.", context_id="talk"))
            with pytest.raises(InvalidParamsError, match="has no answer: a later message came before it was finished"):
                await send(client, asked)
        tasks = await tasks_of(url, "talk")

    assert (len(tasks), desk.ran) == (2, [])


class HeldSaver(InMemorySaver):
    """Reads wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        await self.let_go.wait()
        return await super().aget_tuple(config)


async def test_of_two_messages_with_one_id_that_arrive_together_one_is_refused_without_a_task() -> None:
    saver = HeldSaver()
    graph = create_graph_agent(ScriptedChatModel(["Hello."]), checkpointer=saver)
    first = message_request("one", context_id="talk")
    with serving_ours(graph) as url:
        async with asyncio.timeout(60), a2a_client(url, streaming=False) as client:
            sent = [asyncio.create_task(last_task(client, each)) for each in (first, again(first, "two"))]
            # One is refused while the check of the other reads.
            await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
            saver.let_go.set()
            answers = await asyncio.gather(*sent, return_exceptions=True)
        tasks = await tasks_of(url, "talk")

    assert (sorted(type(answer).__name__ for answer in answers), tasks) == (
        ["InvalidParamsError", "Task"],
        [("TASK_STATE_COMPLETED", 1)],
    )


async def test_the_id_of_a_message_that_runs_or_waits_for_its_turn_is_taken() -> None:
    held = HeldTool()
    graph = create_graph_agent(
        ScriptedChatModel([asks(("1", "hold", {})), "One.", "Two."]), tools=[held.tool], checkpointer=InMemorySaver()
    )
    first, second = (message_request(text, context_id="talk") for text in ("one", "two"))
    with serving_ours(graph) as url:
        async with asyncio.timeout(60), a2a_client(url) as client:
            running = [WatchedTask(client, first)]
            await held.begun.wait()
            running.append(WatchedTask(client, second))
            await running[1].known()
            for request in (first, second):
                with pytest.raises(InvalidParamsError, match="belongs to another message of this conversation"):
                    await last_task(client, again(request, "other"))
            held.let_go.set()
            await asyncio.gather(*(each.over for each in running))
        tasks = await tasks_of(url, "talk")

    assert tasks == [("TASK_STATE_COMPLETED", 1)] * 2


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


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_reused_message_id_leaves_a_question_open(binding: str) -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "No more actions.", "Done.")
    with serving_ours(desk.graph) as url:
        async with a2a_client(url, streaming=False, binding=binding) as client:
            asked = message_request("go", context_id="talk")
            waiting = await send(client, asked)
            reused = message_request("approve", waiting)
            reused.message.message_id = asked.message.message_id
            refused = await send(client, reused)
            done = await send(client, message_request("approve", waiting))

    reason, question = refused.status.message.parts[0].text, waiting.status.message.parts[0].text
    assert (state_name(refused), "belongs to a different input" in reason) == ("TASK_STATE_INPUT_REQUIRED", True)
    assert refused.status.message.parts[1].text == question
    assert (state_name(done), artifact_texts(done), desk.ran) == ("TASK_STATE_COMPLETED", ["Done."], ["wrote a"])


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
