"""Served agents called by the SDK's clients: JSON-RPC and HTTP+JSON, versions 1.0 and 0.3."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
)
from google.protobuf.json_format import MessageToDict
from langgraph.checkpoint.memory import InMemorySaver
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from graph_agent import A2ADelegate, AgentContext, LoopConfig, LoopHook, ScriptedChatModel, Session, create_graph_agent
from graph_agent.a2a.server import A2AServer, a2a_app, agent_card
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.interfaces.server.a2a.app import open_push_http
from graph_agent.interfaces.server.a2a.conversations import session_id_of
from graph_agent.interfaces.server.a2a.executor import NoSlotError
from graph_agent.interfaces.server.a2a.store import open_stores
from graph_agent.persistence import open_saver
from graph_agent.server import AgentSource, create_app
from tests.support.a2a_agents import LOOKING, HeldTool, book, weather_agent
from tests.support.a2a_client import (
    BINDINGS,
    EXTENSION,
    a2a_client,
    artifact_texts,
    event_summary,
    message_request,
    send,
    state_name,
)
from tests.support.a2a_servers import serving, serving_here, serving_ours
from tests.support.agents import asks, echo, kinds
from tests.support.gates import Gate, GatedModel


def together(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Events with consecutive answer pieces joined, as their number depends on timing."""
    merged: list[tuple[Any, ...]] = []
    for event in events:
        if event[:3] == _GOES_ON and merged and merged[-1][:3] == _GOES_ON:
            merged[-1] = (*_GOES_ON, ["".join([*merged[-1][3], *event[3]])])
        else:
            merged.append(event)
    return merged


_GOES_ON = ("artifact", True, False)


@pytest.mark.parametrize(("version", "binding"), BINDINGS)
async def test_a_message_is_answered_with_one_completed_task(version: str, binding: str) -> None:
    with serving_ours(weather_agent(LOOKING)) as url:
        async with a2a_client(url, streaming=False, version=version, binding=binding) as client:
            task = await send(client, message_request("How is the weather?"))

    assert (state_name(task), [artifact.name for artifact in task.artifacts], artifact_texts(task)) == (
        "TASK_STATE_COMPLETED",
        ["answer"],
        ["Rain all day."],
    )


@pytest.mark.parametrize(("version", "binding"), BINDINGS)
async def test_a_stream_reports_each_step_and_the_answer_chunks(version: str, binding: str) -> None:
    # The rest of the answer follows once its first chunk was received; otherwise the two might be joined.
    first, received = Gate(), []
    model = GatedModel(LOOKING, within={2: first})
    graph = create_graph_agent(model, tools=[echo], name="weather", checkpointer=InMemorySaver())
    with serving_ours(graph) as url:
        async with a2a_client(url, version=version, binding=binding) as client:
            async for event in client.send_message(message_request("go")):
                received.append(event_summary(event))
                if received[-1] == ("artifact", False, False, ["Rain"]):
                    first.open()

    events = together(received)
    answered = events.index(("TASK_STATE_WORKING", "echo: success"))
    assert (events[:2], ("TASK_STATE_WORKING", "Looking.") in events, events[answered - 1 :]) == (
        [("task", "TASK_STATE_SUBMITTED"), ("TASK_STATE_WORKING", "")],
        True,
        [
            ("TASK_STATE_WORKING", "echo: started"),
            ("TASK_STATE_WORKING", "echo: success"),
            ("artifact", False, False, ["Rain"]),
            ("artifact", True, False, [" all day."]),
            ("artifact", False, True, ["Rain all day."]),
            ("TASK_STATE_COMPLETED", ""),
        ],
    )


async def test_progress_metadata_is_machine_readable() -> None:
    with serving_ours(weather_agent(LOOKING), show_outputs=True) as url:
        async with a2a_client(url) as client:
            events = [event.status_update async for event in client.send_message(message_request("go"))]

    entries = [MessageToDict(event.status.message.metadata).get(EXTENSION) for event in events]
    last = MessageToDict(events[-1].metadata)[EXTENSION]
    assert ([entry for entry in entries if entry], last["stopReason"], sorted(last["usage"])) == (
        [
            {"type": "plan"},
            {"type": "call", "id": "1", "name": "echo", "status": "started"},
            {"type": "output", "id": "1"},
            {"type": "call", "id": "1", "name": "echo", "status": "success"},
        ],
        "completed",
        ["inputTokens", "modelCalls", "outputTokens", "totalTokens"],
    )


async def test_a_conversation_is_a_session() -> None:
    graph = weather_agent(["Hello Ada.", "You are Ada."], tools=[])
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=False) as client:
            first = await send(client, message_request("I am Ada.", context_id="talk-1"))
            second = await send(client, message_request("Who am I?", context_id=first.context_id))
            listed = await client.list_tasks(ListTasksRequest(context_id="talk-1"))

        events = await Session(graph, "talk-1").events()
    assert (
        [each["content"] for each in events if each["type"] == "user_message" or each["type"] == "agent_response"],
        first.id != second.id,
        {task.id for task in listed.tasks} == {first.id, second.id},
    ) == (["I am Ada.", "Hello Ada.", "Who am I?", "You are Ada."], True, True)


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_interrupt_is_answered_by_the_next_message(streaming: bool) -> None:
    script = [asks(("1", "book", {"room": "12"})), "Booked."]
    with serving_ours(weather_agent(script, tools=[book])) as url:
        async with a2a_client(url, streaming=False) as client:
            waiting = await send(client, message_request("Book room 12"))
        async with a2a_client(url, streaming=streaming) as client:
            async for _ in client.send_message(message_request("yes", waiting)):
                pass
            done = await client.get_task(GetTaskRequest(id=waiting.id))

    assert (state_name(waiting), waiting.status.message.parts[0].text, state_name(done), artifact_texts(done)) == (
        "TASK_STATE_INPUT_REQUIRED",
        "Book 12?",
        "TASK_STATE_COMPLETED",
        ["Booked."],
    )


async def test_an_answer_over_the_concurrency_limit_leaves_the_interrupt_open() -> None:
    full: list[str] = []

    @contextmanager
    def slot(user: str) -> Iterator[None]:
        if full:
            raise NoSlotError(full.pop())
        yield

    with serving_ours(weather_agent([asks(("1", "book", {"room": "12"})), "Booked."], tools=[book]), slots=slot) as url:
        async with a2a_client(url, streaming=False) as client:
            waiting = await send(client, message_request("Book room 12"))
            full.append("One is at work.")
            asked = await send(client, message_request("yes", waiting))
            done = await send(client, message_request("yes", waiting))

    assert [
        (state_name(asked), [part.text for part in asked.status.message.parts]),
        (state_name(done), artifact_texts(done)),
    ] == [("TASK_STATE_INPUT_REQUIRED", ["One is at work.", "Book 12?"]), ("TASK_STATE_COMPLETED", ["Booked."])]


async def test_two_interrupts_are_reported_one_after_the_other() -> None:
    script = [asks(("1", "book", {"room": "1"}), ("2", "book", {"room": "2"})), "Booked."]
    graph = weather_agent(script, tools=[book])
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=False) as client:
            first = await send(client, message_request("go", context_id="s1"))
            second = await send(client, message_request("yes", first))
            done = await send(client, message_request("no", first))

    results = [event["content"] for event in await Session(graph, "s1").events() if event["type"] == "tool_result"]
    assert (
        [task.status.message.parts[0].text for task in (first, second)],
        state_name(done),
        sorted(results),
    ) == (["Book 1?", "Book 2?"], "TASK_STATE_COMPLETED", ["1: yes", "2: no"])


TWO_BOOKINGS = [asks(("1", "book", {"room": "1"})), asks(("2", "book", {"room": "2"})), "Booked."]


async def test_an_answer_reaches_only_the_task_with_the_interrupt() -> None:
    graph = weather_agent(TWO_BOOKINGS, tools=[book])
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=False) as client:
            left = await send(client, message_request("go", context_id="s1"))
            newer = await send(client, message_request("another", context_id="s1"))
            late = await send(client, message_request("no", left))
            done = await send(client, message_request("yes", newer))

    results = [event["content"] for event in await Session(graph, "s1").events() if event["type"] == "tool_result"]
    assert (state_name(late), state_name(done), artifact_texts(done), results[-1]) == (
        "TASK_STATE_REJECTED",
        "TASK_STATE_COMPLETED",
        ["Booked."],
        "2: yes",
    )


async def test_cancelling_a_task_keeps_the_interrupt_of_another() -> None:
    graph = weather_agent(TWO_BOOKINGS, tools=[book])
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=False) as client:
            left = await send(client, message_request("go", context_id="s1"))
            newer = await send(client, message_request("another", context_id="s1"))
            cancelled = await client.cancel_task(CancelTaskRequest(id=left.id))
            done = await send(client, message_request("yes", newer))

    assert (state_name(cancelled), state_name(done), artifact_texts(done)) == (
        "TASK_STATE_CANCELED",
        "TASK_STATE_COMPLETED",
        ["Booked."],
    )


async def test_a_failed_task_reports_its_reason() -> None:
    with serving_ours(weather_agent([])) as url:
        async with a2a_client(url, streaming=False) as client:
            task = await send(client, message_request("go"))

    assert (state_name(task), bool(task.status.message.parts[0].text), artifact_texts(task)) == (
        "TASK_STATE_FAILED",
        True,
        [],
    )


@pytest.mark.parametrize("on_failure", ["answer", "raise"])
async def test_a_task_with_a_model_failure_reports_the_error_and_the_finished_calls(on_failure: Any) -> None:
    class UnauthorizedError(Exception):
        status_code = 401

    class Later(ScriptedChatModel):
        """A model that answers once."""

        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            if self.requests:
                raise UnauthorizedError("bad key")
            async for chunk in super()._astream(*args, **kwargs):
                yield chunk

    model = Later(responses=[asks(("1", "echo", {"text": "a"}))])
    config = LoopConfig(on_failure=on_failure)
    graph = create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver())
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=False) as client:
            task = await send(client, message_request("go"))

    assert (state_name(task), task.status.message.parts[0].text, artifact_texts(task)) == (
        "TASK_STATE_FAILED",
        "This request failed. The model provider refused the API key (HTTP 401).\n\nDone: echo.",
        [],
    )


async def test_a_step_limit_completes_the_task_with_the_limit_sentence() -> None:
    graph = weather_agent(
        [asks((str(i), "echo", {"text": str(i)})) for i in range(20)], config=LoopConfig(on_limit="message")
    )
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=False) as client:
            task = await send(client, message_request("go"))

    assert (state_name(task), artifact_texts(task), MessageToDict(task.metadata)[EXTENSION]["stopReason"]) == (
        "TASK_STATE_COMPLETED",
        ["Reached maximum reasoning steps (10)"],
        "step_limit",
    )


async def test_an_empty_message_is_rejected() -> None:
    with serving_ours(weather_agent([])) as url:
        async with a2a_client(url, streaming=False) as client:
            task = await send(client, message_request(" "))

    assert state_name(task) == "TASK_STATE_REJECTED"


async def test_cancelling_a_task_aborts_its_run() -> None:
    held = HeldTool()
    graph = weather_agent([asks(("1", "hold", {})), "Never said."], tools=[held.tool])
    with serving_ours(graph) as url:
        async with a2a_client(url) as client:
            seen: list[tuple[Any, ...]] = []

            async def watch() -> None:
                seen.extend(
                    [
                        event_summary(event)
                        async for event in client.send_message(message_request("go", context_id="s1"))
                    ]
                )

            watching = asyncio.create_task(watch())
            await held.begun.wait()
            (running,) = (await client.list_tasks(ListTasksRequest(context_id="s1"))).tasks
            cancelled = await client.cancel_task(CancelTaskRequest(id=running.id))
            await watching
            kept = await client.get_task(GetTaskRequest(id=running.id))
            with pytest.raises(TaskNotCancelableError):
                await client.cancel_task(CancelTaskRequest(id=running.id))

    session = Session(graph, "s1")
    assert (state_name(cancelled), state_name(kept), await session.status(), seen[-1][0]) == (
        "TASK_STATE_CANCELED",
        "TASK_STATE_CANCELED",
        "ABORTED",
        "TASK_STATE_CANCELED",
    )


async def test_cancelling_a_queued_task_keeps_the_running_one() -> None:
    held = HeldTool()
    with serving_ours(weather_agent([asks(("1", "hold", {})), "Done."], tools=[held.tool])) as url:
        async with a2a_client(url) as first, a2a_client(url) as second, a2a_client(url) as third:
            seen: list[tuple[Any, ...]] = []
            cancelled: list[Any] = []

            async def watch() -> list[tuple[Any, ...]]:
                return [
                    event_summary(each) async for each in first.send_message(message_request("one", context_id="s1"))
                ]

            working = asyncio.create_task(watch())
            await held.begun.wait()
            async for event in second.send_message(message_request("two", context_id="s1")):
                seen.append(event_summary(event))
                if event.task.id:
                    cancelled.append(await third.cancel_task(CancelTaskRequest(id=event.task.id)))
            held.let_go.set()
            others = await working

    assert ([state_name(task) for task in cancelled], seen, others[-1][0]) == (
        ["TASK_STATE_CANCELED"],
        [("task", "TASK_STATE_SUBMITTED"), ("TASK_STATE_CANCELED", "")],
        "TASK_STATE_COMPLETED",
    )


async def test_cancelling_a_task_that_waits_for_a_person() -> None:
    graph = weather_agent([asks(("1", "book", {"room": "12"}))], tools=[book])
    with serving_ours(graph) as url:
        async with a2a_client(url, streaming=False) as client:
            waiting = await send(client, message_request("go", context_id="s1"))
            cancelled = await client.cancel_task(CancelTaskRequest(id=waiting.id))

    assert (state_name(cancelled), await Session(graph, "s1").status()) == ("TASK_STATE_CANCELED", "ABORTED")


async def test_a_dropped_stream_can_be_resubscribed() -> None:
    held = HeldTool()
    with serving_ours(weather_agent([asks(("1", "hold", {})), "Done at last."], tools=[held.tool])) as url:
        async with a2a_client(url) as first, a2a_client(url) as second:
            task_id = ""
            async for event in first.send_message(message_request("go")):
                task_id = event.task.id or event.status_update.task_id
                if event_summary(event) == ("TASK_STATE_WORKING", "hold: started"):
                    break
            seen = []
            async for event in second.subscribe(SubscribeToTaskRequest(id=task_id)):
                seen.append(event_summary(event))
                held.let_go.set()

    assert (seen[0], seen[-2:]) == (
        ("task", "TASK_STATE_WORKING"),
        [("artifact", False, True, ["Done at last."]), ("TASK_STATE_COMPLETED", "")],
    )


async def test_tasks_and_conversations_survive_a_restart(tmp_path: Path) -> None:
    url_of_db = f"sqlite:///{tmp_path}/agent.db"
    tasks: list[Task] = []
    for script, text in ((["Hello Ada.", asks(("1", "book", {"room": "1"}))], "one"), (["Booked.", "Ada."], "two")):
        async with open_saver(url_of_db) as saver, open_stores(url_of_db) as stores:
            graph = create_graph_agent(ScriptedChatModel(script), tools=[book], checkpointer=saver)
            app_options = {"stores": stores}
            async with serving_here(graph, **app_options) as url, a2a_client(url, streaming=False) as client:
                if text == "one":
                    tasks.append(await send(client, message_request("I am Ada.", context_id="s1")))
                    tasks.append(await send(client, message_request("Book room 1", context_id="s1")))
                else:
                    tasks.append(await client.get_task(GetTaskRequest(id=tasks[0].id)))
                    tasks.append(await send(client, message_request("yes", tasks[1])))

    assert [(state_name(task), artifact_texts(task)) for task in tasks] == [
        ("TASK_STATE_COMPLETED", ["Hello Ada."]),
        ("TASK_STATE_INPUT_REQUIRED", []),
        ("TASK_STATE_COMPLETED", ["Hello Ada."]),
        ("TASK_STATE_COMPLETED", ["Booked."]),
    ]


def test_the_card_describes_the_agent() -> None:
    with serving_ours(weather_agent(LOOKING)) as url:
        card = httpx.get(f"{url}/.well-known/agent-card.json").json()

    assert (
        card["name"],
        [(each["url"], each["protocolBinding"], each["protocolVersion"]) for each in card["supportedInterfaces"]],
        card["capabilities"]["streaming"],
        card["capabilities"]["pushNotifications"],
        [(skill["id"], skill["tags"]) for skill in card["skills"]],
        card["protocolVersion"],
    ) == (
        "weather",
        [
            (f"{url}/a2a", "JSONRPC", "1.0"),
            (f"{url}/a2a/rest", "HTTP+JSON", "1.0"),
            (f"{url}/a2a", "JSONRPC", "0.3"),
            (f"{url}/a2a/rest", "HTTP+JSON", "0.3"),
        ],
        True,
        False,
        [("echo", ["tool"])],
        "0.3",
    )


async def test_agents_that_delegate_in_a_circle_stop() -> None:
    first_url: list[str] = []

    class Late:
        """A delegate to the first agent, whose address is known when both are up."""

        name, description = "first", "The first."

        async def run(self, delegation: Any) -> Any:
            return await A2ADelegate("first", first_url[0]).run(delegation)

    second = weather_agent(
        [asks(("1", "delegate_to_first", {"task": "again"})), "Second says so."], tools=[], delegates=[Late()]
    )
    with serving_ours(second) as second_url:
        script = [asks(("1", "delegate_to_second", {"task": "go"})), "First says so."]
        first = weather_agent(script, tools=[], delegates=[A2ADelegate("second", second_url)])
        with serving_ours(first) as url:
            first_url.append(url)
            async with a2a_client(url, streaming=False) as client:
                task = await send(client, message_request("go", context_id="s1"))

    (thread_id,) = {found.config["configurable"]["thread_id"] async for found in second.checkpointer.alist(None)}
    refused = [each for each in await Session(second, thread_id).events() if each["type"] == "delegation_response"]
    assert (artifact_texts(task), [(each["status"], each["content"][:32]) for each in refused], kinds(refused)) == (
        ["First says so."],
        [("skipped", "This agent may not delegate further"[:32])],
        ["delegation_response"],
    )


@pytest.mark.parametrize(("version", "binding"), BINDINGS[:2])
async def test_unsupported_content_types_are_refused(version: str, binding: str) -> None:
    request = message_request("")
    request.message.parts[0].CopyFrom(Part(raw=b"tck", media_type="application/x-other"))
    with serving_ours(weather_agent([])) as url:
        async with a2a_client(url, streaming=False, version=version, binding=binding) as client:
            with pytest.raises(ContentTypeNotSupportedError):
                await send(client, request)


async def test_the_remaining_budget_in_the_metadata_is_enforced() -> None:
    request = message_request("go", context_id="s1")
    request.message.metadata.update({EXTENSION: {"depth": 0, "tokens": 1, "deadlineS": -1, "cost": "much"}})
    graph = weather_agent([asks(("1", "echo", {"text": "hi"})), "Never asked."])
    with serving_ours(graph, context={}) as url:
        async with a2a_client(url, streaming=False) as client:
            task = await send(client, request)

    assert (state_name(task), MessageToDict(task.metadata)[EXTENSION]["stopReason"]) == (
        "TASK_STATE_COMPLETED",
        "token_limit",
    )


class Fails(LoopHook):
    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        raise ValueError("no")


async def test_usage_of_a_failed_task_is_added_to_the_caller() -> None:
    specialist = weather_agent([asks(("1", "echo", {"text": "hi"}))], hooks=[Fails()])
    with serving_ours(specialist) as url:
        script = [asks(("d", "delegate_to_weather", {"task": "Bergen"})), "No more actions.", "Not known."]
        graph = weather_agent(script, tools=[], delegates=[A2ADelegate("weather", url)])
        result = await Session(graph, "s1").run("go")

    assert ("failed" in result.results["d"]["error"], result.usage["model_calls"]) == (True, 4)


async def test_heartbeats_are_sent_during_long_silences() -> None:
    held = HeldTool()
    beats = 0
    with serving_ours(weather_agent([asks(("1", "hold", {})), "Done."], tools=[held.tool]), heartbeat_s=0.05) as url:
        async with a2a_client(url) as client:
            async for event in client.send_message(message_request("go")):
                if held.begun.is_set() and event_summary(event) == ("TASK_STATE_WORKING", ""):
                    beats += 1
                    if beats == 3:
                        held.let_go.set()

    assert beats >= 3


@contextmanager
def notifying(graph: CompiledAgentGraph, hook: Callable[[Request], Awaitable[Response]]) -> Iterator[tuple[str, str]]:
    """An agent that sends push notifications, and a receiver: their addresses."""

    async def anywhere(url: str) -> bool:
        return True

    with (
        serving(lambda url: Starlette(routes=[Route("/hook", hook, methods=["POST"])])) as hook_url,
        serving(
            lambda url: a2a_app(graph, agent_card(graph, url, push_notifications=True), push_url_check=anywhere)
        ) as url,
    ):
        yield url, f"{hook_url}/hook"


async def test_every_task_update_is_pushed_to_its_receiver() -> None:
    received: list[dict[str, Any]] = []

    async def hook(request: Request) -> Response:
        received.append({**await request.json(), "token": request.headers["x-a2a-notification-token"]})
        return Response()

    with notifying(weather_agent(["Hello."], tools=[]), hook) as (url, hook_url):
        async with a2a_client(url, streaming=False) as client:
            request = message_request("hi")
            config = TaskPushNotificationConfig(id="p", url=hook_url, token="t0ken")
            request.configuration.task_push_notification_config.CopyFrom(config)
            await send(client, request)

    states = [each["statusUpdate"]["status"]["state"] for each in received if "statusUpdate" in each]
    assert (states, {each["token"] for each in received}) == (
        ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"],
        {"t0ken"},
    )


async def test_a_notification_that_fails_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def hook(request: Request) -> Response:
        return Response(status_code=500)

    with notifying(weather_agent(["Hello."], tools=[]), hook) as (url, hook_url):
        async with a2a_client(url, streaming=False) as client:
            request = message_request("hi")
            request.configuration.task_push_notification_config.url = hook_url
            task = await send(client, request)

    failed = [record for record in caplog.records if record.levelname == "ERROR"]
    sent = f"Error sending push-notification for task_id={task.id} to URL: {hook_url}."
    cause = f" HTTPStatusError: Server error '500 Internal Server Error' for url '{hook_url}'"
    assert {(record.exc_info, record.getMessage().partition("\n")[0]) for record in failed} == {(None, sent + cause)}


async def test_an_unresponsive_receiver_does_not_delay_the_task() -> None:
    asked, let_go = threading.Event(), threading.Event()

    async def hook(request: Request) -> Response:
        asked.set()
        await asyncio.to_thread(let_go.wait)
        return Response()

    with notifying(weather_agent(["Hello."], tools=[]), hook) as (url, hook_url):
        async with a2a_client(url, streaming=False) as client:
            request = message_request("hi")
            request.configuration.task_push_notification_config.url = hook_url
            task = await send(client, request)
            unanswered = await asyncio.to_thread(asked.wait) and not let_go.is_set()
        let_go.set()

    assert (state_name(task), unanswered) == ("TASK_STATE_COMPLETED", True)


async def test_only_the_status_of_a_receivers_response_is_read() -> None:
    answered = threading.Event()

    async def endless() -> AsyncIterator[bytes]:
        while not answered.is_set():
            yield b"x" * 1_000_000

    app = Starlette(routes=[Route("/hook", lambda request: StreamingResponse(endless(), 202), methods=["POST"])])
    with serving(lambda url: app) as url:
        async with open_push_http(public_only=False) as http:
            response = await http.post(f"{url}/hook", json={})
        answered.set()

    assert (response.status_code, response.content) == (202, b"")


def test_a_context_id_cannot_address_another_users_session() -> None:
    named = [("", "b/c"), ("", "/b/c"), ("", "c"), ("b", "c"), ("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c")]

    ids = [session_id_of(user, context_id) for user, context_id in named]

    assert ids == ["/b/c", "//b/c", "c", "b/c", "a/b/c", "a%2Fb/c", "a%252Fb/c"]


async def test_push_notifications_to_private_addresses_are_refused() -> None:
    graph = weather_agent([], tools=[])
    with serving(lambda url: a2a_app(graph, agent_card(graph, url, push_notifications=True))) as url:
        async with a2a_client(url, streaming=False) as client:
            request = message_request("hi")
            request.configuration.task_push_notification_config.url = "http://127.0.0.1:1/hook"
            with pytest.raises(InvalidParamsError):
                await send(client, request)


async def test_a_running_task_fails_when_the_server_stops(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    anonymous = ServerCallContext()
    working = Task(id="t1", context_id="c1", status=TaskStatus(state=TaskState.TASK_STATE_WORKING))
    async with open_stores(url) as stores:
        await stores.tasks.save(working, anonymous)
        live = await stores.tasks.get("t1", anonymous)
    async with open_stores(url) as stores:
        found = await stores.tasks.get("t1", anonymous)
        listed = await stores.tasks.list(ListTasksRequest(), anonymous)
    async with open_stores(url) as stores:
        await stores.tasks.save(Task(id="t2", context_id="c1", status=working.status), anonymous)
    async with open_stores(url) as stores:
        unfinished = await stores.tasks.list(ListTasksRequest(status=TaskState.TASK_STATE_WORKING), anonymous)

    assert live is not None
    assert found is not None
    assert (
        state_name(live),
        state_name(found),
        [state_name(task) for task in listed.tasks],
        unfinished.total_size,
    ) == (
        "TASK_STATE_WORKING",
        "TASK_STATE_FAILED",
        ["TASK_STATE_FAILED"],
        0,
    )


async def test_aborting_a_waiting_session_closes_the_interrupt() -> None:
    waiting = weather_agent([asks(("1", "book", {"room": "12"}))], tools=[book])
    with serving_ours(waiting) as url:
        script = [asks(("1", "delegate_to_hotel", {"task": "Book"})), "No more actions.", "Done."]
        graph = weather_agent(script, tools=[], delegates=[A2ADelegate("hotel", url)])
        session = Session(graph, "s1")
        asked = await session.run("go")
        await session.abort()
        async with a2a_client(url) as client:
            (task,) = (await client.list_tasks(ListTasksRequest())).tasks

    assert (
        [each.value["question"] for each in asked.interrupts],
        await session.status(),
        state_name(task),
        await Session(waiting, task.context_id).status(),
    ) == (["Book 12?"], "ABORTED", "TASK_STATE_CANCELED", "ABORTED")


reviewed = echo.model_copy(update={"name": "send", "metadata": {"approve": True}})
"""A tool whose mark makes the agent replace the field `approve` of its configuration."""


class _FewSteps(AgentContext):
    max_steps: int | None = 3


def _steps_of(**options: Any) -> CompiledAgentGraph:
    """An agent that calls a tool in each plan, with different arguments, until a limit ends its input."""
    endless = [asks((f"{at}", "echo", {"text": f"{at}"})) for at in range(20)]
    return weather_agent(endless, **options)  # type: ignore[no-any-return]  # it returns the agent as Any


@pytest.mark.parametrize(
    ("options", "server", "steps"),
    [
        ({}, {}, 10),
        ({"config": LoopConfig(on_limit="message", deadline_s=60)}, {}, 10),
        ({"config": LoopConfig(max_steps=5)}, {}, 5),
        ({"config": LoopConfig(max_steps=2)}, {}, 2),
        ({"config": LoopConfig(max_steps=12)}, {}, 12),
        ({"config": LoopConfig(max_steps=4), "tools": [echo, reviewed]}, {}, 4),
        ({"tools": [echo, reviewed]}, {}, 10),
        ({"context_schema": _FewSteps}, {}, 3),
        ({"config": LoopConfig(max_steps=2)}, {"context": {"max_steps": 4}}, 4),
        ({"config": LoopConfig(max_steps=2)}, {"context": {"on_limit": "message"}}, 2),
        ({}, {"context": {"on_limit": "message"}}, 10),
    ],
)
@pytest.mark.parametrize(
    "app", [a2a_app, lambda graph, card, **given: Starlette(routes=A2AServer(graph, card, **given).routes)]
)
async def test_an_a2a_server_keeps_the_step_limit_that_the_agent_sets(
    app: Any, options: dict[str, Any], server: dict[str, Any], steps: int
) -> None:
    graph = _steps_of(**{"config": LoopConfig(on_limit="message"), **options})
    with serving(lambda url: app(graph, agent_card(graph, url), **server)) as url:
        async with a2a_client(url, streaming=False) as client:
            task = await send(client, message_request("go"))

    assert artifact_texts(task)[0].startswith(f"Reached maximum reasoning steps ({steps})")


@pytest.mark.parametrize(("config", "steps"), [(LoopConfig(), 10), (LoopConfig(max_steps=3), 3)])
async def test_a_server_of_an_agent_keeps_the_step_limit_that_the_agent_sets(config: LoopConfig, steps: int) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield _steps_of(config=config)

    with serving(lambda url: create_app(AgentSource("weather", "", "memory:", opened))) as url:
        async with a2a_client(url, streaming=False) as client:
            task = await send(client, message_request("go"))

    assert artifact_texts(task)[0].startswith(f"Reached maximum reasoning steps ({steps})")
