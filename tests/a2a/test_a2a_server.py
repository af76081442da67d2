"""Our agents, called by the SDK's own clients: JSON-RPC and HTTP+JSON, 1.0 and 0.3."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.server.context import ServerCallContext
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
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
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from graph_agent import A2ADelegate, LoopConfig, LoopHook, ScriptedChatModel, Session, create_graph_agent
from graph_agent.a2a.server import a2a_app
from graph_agent.a2a.server.card import agent_card
from graph_agent.a2a.server.executor import NoPlaceError
from graph_agent.a2a.server.push import open_push_http
from graph_agent.a2a.server.sessions import session_id_of
from graph_agent.a2a.server.store import open_stores
from graph_agent.a2a.wire import EXTENSION
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.hooks.protocol import HookRequest, HookResponse
from graph_agent.persistence.open import open_saver
from tests.support.a2a_servers import serving, serving_here, serving_ours
from tests.support.agents import asks, echo, kinds

LOOKING = [asks(("1", "echo", {"text": "hi"}), content="Looking."), "Rain all day."]


def agent(script: list[str], **options: Any) -> Any:
    """One of our agents, with a memory."""
    options.setdefault("checkpointer", InMemorySaver())
    options.setdefault("tools", [echo])
    return create_graph_agent(ScriptedChatModel(script), name="weather", **options)


@asynccontextmanager
async def calling(
    url: str, *, streaming: bool = True, version: str = "1.0", binding: str = "JSONRPC"
) -> AsyncIterator[Client]:
    """A plain client of the SDK, which speaks one version and one binding."""
    async with httpx.AsyncClient(timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        kept = [
            each
            for each in card.supported_interfaces
            if (each.protocol_version, each.protocol_binding) == (version, binding)
        ]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(kept)
        config = ClientConfig(httpx_client=http, streaming=streaming, supported_protocol_bindings=[binding])
        yield ClientFactory(config).create(card)


def message(text: str, task: Task | None = None, **fields: Any) -> SendMessageRequest:
    """A request that says something, to begin a task or to go on with one."""
    said = Message(message_id=f"m-{text}", role=Role.ROLE_USER, parts=[Part(text=text)], **fields)
    if task is not None:
        said.task_id, said.context_id = task.id, task.context_id
    return SendMessageRequest(message=said)


async def sent(client: Client, request: SendMessageRequest) -> Task:
    """The task that a request comes to, without streaming."""
    events = [event async for event in client.send_message(request)]
    return events[-1].task


def brief(event: StreamResponse) -> tuple[Any, ...]:
    """One event of a stream, in short."""
    match event.WhichOneof("payload"):
        case "task":
            return ("task", TaskState.Name(event.task.status.state))
        case "status_update":
            said = "".join(part.text for part in event.status_update.status.message.parts)
            return (TaskState.Name(event.status_update.status.state), said)
        case "artifact_update":
            update = event.artifact_update
            return ("artifact", update.append, update.last_chunk, [part.text for part in update.artifact.parts])
        case other:
            return (other,)


def together(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Events with the pieces that go on with an answer as one: how many there are is a matter of time."""
    told: list[tuple[Any, ...]] = []
    for event in events:
        if event[:3] == _GOES_ON and told and told[-1][:3] == _GOES_ON:
            told[-1] = (*_GOES_ON, ["".join([*told[-1][3], *event[3]])])
        else:
            told.append(event)
    return told


_GOES_ON = ("artifact", True, False)


def state_of(task: Task) -> str:
    """A task's state, by name."""
    return TaskState.Name(task.status.state)


def words(task: Task) -> list[str]:
    """The text of a task's artifacts."""
    return [part.text for artifact in task.artifacts for part in artifact.parts]


BINDINGS = [("1.0", "JSONRPC"), ("1.0", "HTTP+JSON"), ("0.3", "JSONRPC"), ("0.3", "HTTP+JSON")]


@pytest.mark.parametrize(("version", "binding"), BINDINGS)
async def test_a_message_is_answered_with_one_completed_task(version: str, binding: str) -> None:
    with serving_ours(agent(LOOKING)) as url:
        async with calling(url, streaming=False, version=version, binding=binding) as client:
            task = await sent(client, message("How is the weather?"))

    assert (state_of(task), [artifact.name for artifact in task.artifacts], words(task)) == (
        "TASK_STATE_COMPLETED",
        ["answer"],
        ["Rain all day."],
    )


@pytest.mark.parametrize(("version", "binding"), BINDINGS)
async def test_a_stream_tells_each_step_and_the_answer_as_it_comes(version: str, binding: str) -> None:
    with serving_ours(agent(LOOKING)) as url:
        async with calling(url, version=version, binding=binding) as client:
            events = together([brief(event) async for event in client.send_message(message("go"))])

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


async def test_programs_are_told_in_metadata() -> None:
    with serving_ours(agent(LOOKING), show_outputs=True) as url:
        async with calling(url) as client:
            events = [event.status_update async for event in client.send_message(message("go"))]

    told = [MessageToDict(event.status.message.metadata).get(EXTENSION) for event in events]
    last = MessageToDict(events[-1].metadata)[EXTENSION]
    assert ([entry for entry in told if entry], last["stopReason"], sorted(last["usage"])) == (
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
    graph = agent(["Hello Ada.", "You are Ada."], tools=[])
    with serving_ours(graph) as url:
        async with calling(url, streaming=False) as client:
            first = await sent(client, message("I am Ada.", context_id="talk-1"))
            second = await sent(client, message("Who am I?", context_id=first.context_id))
            listed = await client.list_tasks(ListTasksRequest(context_id="talk-1"))

        events = await Session(graph, "talk-1").events()
    assert (
        [each["content"] for each in events if each["type"] == "user_message" or each["type"] == "agent_response"],
        first.id != second.id,
        {task.id for task in listed.tasks} == {first.id, second.id},
    ) == (["I am Ada.", "Hello Ada.", "Who am I?", "You are Ada."], True, True)


@tool
def book(room: str) -> str:
    """Book a room, once somebody agrees."""
    return f"{room}: {interrupt({'question': f'Book {room}?'})}"


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_interrupt_asks_and_the_next_message_answers(streaming: bool) -> None:
    script = [asks(("1", "book", {"room": "12"})), "Booked."]
    with serving_ours(agent(script, tools=[book])) as url:
        async with calling(url, streaming=False) as client:
            waiting = await sent(client, message("Book room 12"))
        async with calling(url, streaming=streaming) as client:
            async for _ in client.send_message(message("yes", waiting)):
                pass
            done = await client.get_task(GetTaskRequest(id=waiting.id))

    assert (state_of(waiting), waiting.status.message.parts[0].text, state_of(done), words(done)) == (
        "TASK_STATE_INPUT_REQUIRED",
        "Book 12?",
        "TASK_STATE_COMPLETED",
        ["Booked."],
    )


async def test_an_answer_that_finds_no_place_leaves_the_question_open() -> None:
    full: list[str] = []

    @contextmanager
    def held(user: str) -> Iterator[None]:
        if full:
            raise NoPlaceError(full.pop())
        yield

    with serving_ours(agent([asks(("1", "book", {"room": "12"})), "Booked."], tools=[book]), held=held) as url:
        async with calling(url, streaming=False) as client:
            waiting = await sent(client, message("Book room 12"))
            full.append("One is at work.")
            asked = await sent(client, message("yes", waiting))
            done = await sent(client, message("yes", waiting))

    assert [
        (state_of(asked), [part.text for part in asked.status.message.parts]),
        (state_of(done), words(done)),
    ] == [("TASK_STATE_INPUT_REQUIRED", ["One is at work.", "Book 12?"]), ("TASK_STATE_COMPLETED", ["Booked."])]


async def test_two_interrupts_are_asked_one_after_the_other() -> None:
    script = [asks(("1", "book", {"room": "1"}), ("2", "book", {"room": "2"})), "Booked."]
    graph = agent(script, tools=[book])
    with serving_ours(graph) as url:
        async with calling(url, streaming=False) as client:
            first = await sent(client, message("go", context_id="s1"))
            second = await sent(client, message("yes", first))
            done = await sent(client, message("no", first))

    results = [event["content"] for event in await Session(graph, "s1").events() if event["type"] == "tool_result"]
    assert (
        [task.status.message.parts[0].text for task in (first, second)],
        state_of(done),
        sorted(results),
    ) == (["Book 1?", "Book 2?"], "TASK_STATE_COMPLETED", ["1: yes", "2: no"])


TWO_BOOKINGS = [asks(("1", "book", {"room": "1"})), asks(("2", "book", {"room": "2"})), "Booked."]


async def test_an_answer_is_for_the_task_that_asked() -> None:
    graph = agent(TWO_BOOKINGS, tools=[book])
    with serving_ours(graph) as url:
        async with calling(url, streaming=False) as client:
            left = await sent(client, message("go", context_id="s1"))
            newer = await sent(client, message("another", context_id="s1"))
            late = await sent(client, message("no", left))
            done = await sent(client, message("yes", newer))

    results = [event["content"] for event in await Session(graph, "s1").events() if event["type"] == "tool_result"]
    assert (state_of(late), state_of(done), words(done), results[-1]) == (
        "TASK_STATE_REJECTED",
        "TASK_STATE_COMPLETED",
        ["Booked."],
        "2: yes",
    )


async def test_cancelling_a_task_leaves_the_question_of_another() -> None:
    graph = agent(TWO_BOOKINGS, tools=[book])
    with serving_ours(graph) as url:
        async with calling(url, streaming=False) as client:
            left = await sent(client, message("go", context_id="s1"))
            newer = await sent(client, message("another", context_id="s1"))
            cancelled = await client.cancel_task(CancelTaskRequest(id=left.id))
            done = await sent(client, message("yes", newer))

    assert (state_of(cancelled), state_of(done), words(done)) == (
        "TASK_STATE_CANCELED",
        "TASK_STATE_COMPLETED",
        ["Booked."],
    )


async def test_a_task_that_fails_says_why() -> None:
    with serving_ours(agent([])) as url:
        async with calling(url, streaming=False) as client:
            task = await sent(client, message("go"))

    assert (state_of(task), bool(task.status.message.parts[0].text), words(task)) == ("TASK_STATE_FAILED", True, [])


@pytest.mark.parametrize("on_failure", ["answer", "raise"])
async def test_a_task_whose_model_fails_says_what_failed_and_what_was_done(on_failure: Any) -> None:
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
        async with calling(url, streaming=False) as client:
            task = await sent(client, message("go"))

    assert (state_of(task), task.status.message.parts[0].text, words(task)) == (
        "TASK_STATE_FAILED",
        "This request failed. The model provider refused the API key (HTTP 401: bad key); check the key and the "
        "address it is sent to.\n\nDone: echo.",
        [],
    )


async def test_a_step_limit_completes_with_the_sentence_that_says_so() -> None:
    graph = agent([asks((str(i), "echo", {"text": str(i)})) for i in range(20)], config=LoopConfig(on_limit="message"))
    with serving_ours(graph) as url:
        async with calling(url, streaming=False) as client:
            task = await sent(client, message("go"))

    assert (state_of(task), words(task), MessageToDict(task.metadata)[EXTENSION]["stopReason"]) == (
        "TASK_STATE_COMPLETED",
        ["Reached maximum reasoning steps (10)"],
        "step_limit",
    )


async def test_a_message_that_says_nothing_is_rejected() -> None:
    with serving_ours(agent([])) as url:
        async with calling(url, streaming=False) as client:
            task = await sent(client, message(" "))

    assert state_of(task) == "TASK_STATE_REJECTED"


class Held:
    """A tool that waits, and tells when it has begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self._loop = asyncio.get_running_loop()

        @tool
        async def hold() -> str:
            """Wait."""
            self._loop.call_soon_threadsafe(self.begun.set)
            while not self.let_go.is_set():
                await asyncio.sleep(0.01)
            return "held"

        self.tool = hold


async def test_cancelling_a_task_aborts_its_run() -> None:
    held = Held()
    graph = agent([asks(("1", "hold", {})), "Never said."], tools=[held.tool])
    with serving_ours(graph) as url:
        async with calling(url) as client:
            seen: list[tuple[Any, ...]] = []

            async def watch() -> None:
                seen.extend([brief(event) async for event in client.send_message(message("go", context_id="s1"))])

            watching = asyncio.create_task(watch())
            await held.begun.wait()
            (running,) = (await client.list_tasks(ListTasksRequest(context_id="s1"))).tasks
            cancelled = await client.cancel_task(CancelTaskRequest(id=running.id))
            await watching
            kept = await client.get_task(GetTaskRequest(id=running.id))
            with pytest.raises(TaskNotCancelableError):
                await client.cancel_task(CancelTaskRequest(id=running.id))

    session = Session(graph, "s1")
    assert (state_of(cancelled), state_of(kept), await session.status(), seen[-1][0]) == (
        "TASK_STATE_CANCELED",
        "TASK_STATE_CANCELED",
        "ABORTED",
        "TASK_STATE_CANCELED",
    )


async def test_cancelling_a_task_that_waits_for_its_turn() -> None:
    held = Held()
    with serving_ours(agent([asks(("1", "hold", {})), "Done."], tools=[held.tool])) as url:
        async with calling(url) as first, calling(url) as second, calling(url) as third:
            seen: list[tuple[Any, ...]] = []
            cancelled: list[Any] = []

            async def watch() -> list[tuple[Any, ...]]:
                return [brief(each) async for each in first.send_message(message("one", context_id="s1"))]

            working = asyncio.create_task(watch())
            await held.begun.wait()
            async for event in second.send_message(message("two", context_id="s1")):
                seen.append(brief(event))
                if event.task.id:
                    cancelled.append(await third.cancel_task(CancelTaskRequest(id=event.task.id)))
            held.let_go.set()
            others = await working

    assert ([state_of(task) for task in cancelled], seen, others[-1][0]) == (
        ["TASK_STATE_CANCELED"],
        [("task", "TASK_STATE_SUBMITTED"), ("TASK_STATE_CANCELED", "")],
        "TASK_STATE_COMPLETED",
    )


async def test_cancelling_a_task_that_waits_for_a_person() -> None:
    graph = agent([asks(("1", "book", {"room": "12"}))], tools=[book])
    with serving_ours(graph) as url:
        async with calling(url, streaming=False) as client:
            waiting = await sent(client, message("go", context_id="s1"))
            cancelled = await client.cancel_task(CancelTaskRequest(id=waiting.id))

    assert (state_of(cancelled), await Session(graph, "s1").status()) == ("TASK_STATE_CANCELED", "ABORTED")


async def test_a_dropped_stream_is_taken_up_again() -> None:
    held = Held()
    with serving_ours(agent([asks(("1", "hold", {})), "Done at last."], tools=[held.tool])) as url:
        async with calling(url) as first, calling(url) as second:
            task_id = ""
            async for event in first.send_message(message("go")):
                task_id = event.task.id or event.status_update.task_id
                if brief(event) == ("TASK_STATE_WORKING", "hold: started"):
                    break
            seen = []
            async for event in second.subscribe(SubscribeToTaskRequest(id=task_id)):
                seen.append(brief(event))
                held.let_go.set()

    assert (seen[0], seen[-2:]) == (
        ("task", "TASK_STATE_WORKING"),
        [("artifact", False, True, ["Done at last."]), ("TASK_STATE_COMPLETED", "")],
    )


async def test_tasks_and_conversations_outlive_a_restart(tmp_path: Path) -> None:
    url_of_db = f"sqlite:///{tmp_path}/agent.db"
    tasks: list[Task] = []
    for script, said in ((["Hello Ada.", asks(("1", "book", {"room": "1"}))], "one"), (["Booked.", "Ada."], "two")):
        async with open_saver(url_of_db) as saver, open_stores(url_of_db) as stores:
            graph = create_graph_agent(ScriptedChatModel(script), tools=[book], checkpointer=saver)
            app_options = {"stores": stores}
            async with serving_here(graph, **app_options) as url, calling(url, streaming=False) as client:
                if said == "one":
                    tasks.append(await sent(client, message("I am Ada.", context_id="s1")))
                    tasks.append(await sent(client, message("Book room 1", context_id="s1")))
                else:
                    tasks.append(await client.get_task(GetTaskRequest(id=tasks[0].id)))
                    tasks.append(await sent(client, message("yes", tasks[1])))

    assert [(state_of(task), words(task)) for task in tasks] == [
        ("TASK_STATE_COMPLETED", ["Hello Ada."]),
        ("TASK_STATE_INPUT_REQUIRED", []),
        ("TASK_STATE_COMPLETED", ["Hello Ada."]),
        ("TASK_STATE_COMPLETED", ["Booked."]),
    ]


def test_the_card_is_true() -> None:
    with serving_ours(agent(LOOKING)) as url:
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

    second = agent(
        [asks(("1", "delegate_to_first", {"task": "again"})), "Second says so."], tools=[], delegates=[Late()]
    )
    with serving_ours(second) as second_url:
        script = [asks(("1", "delegate_to_second", {"task": "go"})), "First says so."]
        first = agent(script, tools=[], delegates=[A2ADelegate("second", second_url)])
        with serving_ours(first) as url:
            first_url.append(url)
            async with calling(url, streaming=False) as client:
                task = await sent(client, message("go", context_id="s1"))

    (thread_id,) = {found.config["configurable"]["thread_id"] async for found in second.checkpointer.alist(None)}
    refused = [each for each in await Session(second, thread_id).events() if each["type"] == "delegation_response"]
    assert (words(task), [(each["status"], each["content"][:32]) for each in refused], kinds(refused)) == (
        ["First says so."],
        [("error", "This agent may not delegate further"[:32])],
        ["delegation_response"],
    )


@pytest.mark.parametrize(("version", "binding"), BINDINGS[:2])
async def test_content_of_a_kind_that_the_card_does_not_name_is_refused(version: str, binding: str) -> None:
    request = message("")
    request.message.parts[0].CopyFrom(Part(raw=b"tck", media_type="application/x-other"))
    with serving_ours(agent([])) as url:
        async with calling(url, streaming=False, version=version, binding=binding) as client:
            with pytest.raises(ContentTypeNotSupportedError):
                await sent(client, request)


async def test_what_a_delegating_run_has_left_is_kept_to() -> None:
    request = message("go", context_id="s1")
    request.message.metadata.update({EXTENSION: {"depth": 0, "tokens": 1, "deadlineS": -1, "cost": "much"}})
    graph = agent([asks(("1", "echo", {"text": "hi"})), "Never asked."])
    with serving_ours(graph, context={}) as url:
        async with calling(url, streaming=False) as client:
            task = await sent(client, request)

    assert (state_of(task), MessageToDict(task.metadata)[EXTENSION]["stopReason"]) == (
        "TASK_STATE_COMPLETED",
        "token_limit",
    )


class Fails(LoopHook):
    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        raise ValueError("no")


async def test_what_a_failed_task_has_used_counts_for_who_delegated_it() -> None:
    specialist = agent([asks(("1", "echo", {"text": "hi"}))], hooks=[Fails()])
    with serving_ours(specialist) as url:
        script = [asks(("d", "delegate_to_weather", {"task": "Bergen"})), "No more actions.", "Not known."]
        graph = agent(script, tools=[], delegates=[A2ADelegate("weather", url)])
        result = await Session(graph, "s1").run("go")

    assert ("failed" in result.results["d"]["error"], result.usage["model_calls"]) == (True, 4)


async def test_a_long_silence_is_broken_by_heartbeats() -> None:
    held = Held()
    beats = 0
    with serving_ours(agent([asks(("1", "hold", {})), "Done."], tools=[held.tool]), heartbeat_s=0.05) as url:
        async with calling(url) as client:
            async for event in client.send_message(message("go")):
                if held.begun.is_set() and brief(event) == ("TASK_STATE_WORKING", ""):
                    beats += 1
                    if beats == 3:
                        held.let_go.set()

    assert beats >= 3


@contextmanager
def notifying(graph: CompiledAgentGraph, hook: Callable[[Request], Awaitable[Response]]) -> Iterator[tuple[str, str]]:
    """An agent that sends notifications wherever it is asked to, and a receiver: their addresses."""

    async def anywhere(url: str) -> bool:
        return True

    with (
        serving(lambda url: Starlette(routes=[Route("/hook", hook, methods=["POST"])])) as hook_url,
        serving(
            lambda url: a2a_app(graph, agent_card(graph, url, push_notifications=True), push_url_check=anywhere)
        ) as url,
    ):
        yield url, f"{hook_url}/hook"


async def test_every_change_of_a_task_is_pushed_to_who_asked_for_it() -> None:
    received: list[dict[str, Any]] = []

    async def hook(request: Request) -> Response:
        received.append({**await request.json(), "token": request.headers["x-a2a-notification-token"]})
        return Response()

    with notifying(agent(["Hello."], tools=[]), hook) as (url, hook_url):
        async with calling(url, streaming=False) as client:
            request = message("hi")
            config = TaskPushNotificationConfig(id="p", url=hook_url, token="t0ken")
            request.configuration.task_push_notification_config.CopyFrom(config)
            await sent(client, request)

    states = [each["statusUpdate"]["status"]["state"] for each in received if "statusUpdate" in each]
    assert (states, {each["token"] for each in received}) == (
        ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"],
        {"t0ken"},
    )


async def test_a_receiver_that_does_not_answer_holds_no_task_up() -> None:
    asked, let_go = threading.Event(), threading.Event()

    async def hook(request: Request) -> Response:
        asked.set()
        await asyncio.to_thread(let_go.wait)
        return Response()

    with notifying(agent(["Hello."], tools=[]), hook) as (url, hook_url):
        async with calling(url, streaming=False) as client:
            request = message("hi")
            request.configuration.task_push_notification_config.url = hook_url
            task = await sent(client, request)
            unanswered = await asyncio.to_thread(asked.wait) and not let_go.is_set()
        let_go.set()

    assert (state_of(task), unanswered) == ("TASK_STATE_COMPLETED", True)


async def test_nothing_of_a_receivers_answer_but_its_status_is_read() -> None:
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


def test_nobody_reaches_the_session_of_another_by_naming_it() -> None:
    named = [("", "b/c"), ("", "/b/c"), ("", "c"), ("b", "c"), ("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c")]

    ids = [session_id_of(user, context_id) for user, context_id in named]

    assert ids == ["/b/c", "//b/c", "c", "b/c", "a/b/c", "a%2Fb/c", "a%252Fb/c"]


async def test_an_address_inside_the_network_is_not_pushed_to() -> None:
    graph = agent([], tools=[])
    with serving(lambda url: a2a_app(graph, agent_card(graph, url, push_notifications=True))) as url:
        async with calling(url, streaming=False) as client:
            request = message("hi")
            request.configuration.task_push_notification_config.url = "http://127.0.0.1:1/hook"
            with pytest.raises(InvalidParamsError):
                await sent(client, request)


async def test_a_task_that_a_stopped_server_worked_on_has_failed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    nobody = ServerCallContext()
    working = Task(id="t1", context_id="c1", status=TaskStatus(state=TaskState.TASK_STATE_WORKING))
    async with open_stores(url) as stores:
        await stores.tasks.save(working, nobody)
        live = await stores.tasks.get("t1", nobody)
    async with open_stores(url) as stores:
        found = await stores.tasks.get("t1", nobody)
        listed = await stores.tasks.list(ListTasksRequest(), nobody)
    async with open_stores(url) as stores:
        await stores.tasks.save(Task(id="t2", context_id="c1", status=working.status), nobody)
    async with open_stores(url) as stores:
        at_work = await stores.tasks.list(ListTasksRequest(status=TaskState.TASK_STATE_WORKING), nobody)

    assert live is not None
    assert found is not None
    assert (state_of(live), state_of(found), [state_of(task) for task in listed.tasks], at_work.total_size) == (
        "TASK_STATE_WORKING",
        "TASK_STATE_FAILED",
        ["TASK_STATE_FAILED"],
        0,
    )


async def test_aborting_a_session_that_waits_withdraws_the_question() -> None:
    waiting = agent([asks(("1", "book", {"room": "12"}))], tools=[book])
    with serving_ours(waiting) as url:
        script = [asks(("1", "delegate_to_hotel", {"task": "Book"})), "No more actions.", "Done."]
        graph = agent(script, tools=[], delegates=[A2ADelegate("hotel", url)])
        session = Session(graph, "s1")
        asked = await session.run("go")
        await session.abort()
        async with calling(url) as client:
            (task,) = (await client.list_tasks(ListTasksRequest())).tasks

    assert (
        [each.value["question"] for each in asked.interrupts],
        await session.status(),
        state_of(task),
        await Session(waiting, task.context_id).status(),
    ) == (["Book 12?"], "ABORTED", "TASK_STATE_CANCELED", "ABORTED")
