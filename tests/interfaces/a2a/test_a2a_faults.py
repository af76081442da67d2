"""Faults of remote agents: each is an error result of its call, and the run continues."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.routes import create_agent_card_routes
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCard, Part, TaskState
from langgraph.checkpoint.memory import InMemorySaver
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from graph_agent import A2ADelegate, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.approvals import approve
from graph_agent.base.usage import RemainingBudget
from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.errors import ConfigError
from graph_agent.integrations.delegates.a2a_http import A2AAuth
from tests.support.a2a_client import EXTENSION
from tests.support.a2a_delegates import delegating_session, delegation_summaries
from tests.support.a2a_servers import PlainAgent, answer, plain_card, serving, serving_plain
from tests.support.agents import asks
from tests.support.warm_process import warm_python

Endpoint = Callable[[Request], Awaitable[Response]]


async def delegate_to(delegate: A2ADelegate, **options: Any) -> DelegationResult:
    """One delegation, without a graph around it."""
    return await delegate.run(Delegation("1", "Bergen", [], "s1", 0, **options))


def serving_badly(endpoint: Endpoint, card: Callable[[str], AgentCard] = plain_card) -> Any:
    """Serve a valid card and a faulty `endpoint`."""
    return serving(
        lambda url: Starlette(
            routes=[*create_agent_card_routes(card(url)), Route("/rpc", endpoint, methods=["GET", "POST"])]
        )
    )


def event_of(payload: dict[str, Any]) -> bytes:
    """One event of a stream, in the protocol's format."""
    return f"data: {json.dumps({'jsonrpc': '2.0', 'id': '1', 'result': payload})}\n\n".encode()


UNCERTAIN = "It is not known whether it took effect; check before repeating it."
"""The end of a result whose task may have been worked on."""
WORKING = event_of({"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}})


async def breaks_off(request: Request) -> Response:
    async def stream() -> AsyncIterator[bytes]:
        yield WORKING
        raise ConnectionError("the end")

    if (await request.json())["method"] != "SendStreamingMessage":
        return Response("gone", 503)
    return StreamingResponse(stream(), media_type="text/event-stream")


async def talks_nonsense(request: Request) -> Response:
    return Response("<html>hello</html>", media_type="text/html")


async def sends_bad_json(request: Request) -> Response:
    return Response(b"data: {not json\n\n", media_type="text/event-stream")


async def sends_the_wrong_shape(request: Request) -> Response:
    return Response(event_of({"task": {"id": 5, "status": []}}), media_type="text/event-stream")


async def sends_nothing(request: Request) -> Response:
    return Response(b"", media_type="text/event-stream")


async def sends_too_much(request: Request) -> Response:
    async def stream() -> AsyncIterator[bytes]:
        yield WORKING
        for _ in range(100):
            yield b": " + b"x" * 1_000_000 + b"\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


async def claims_too_much(request: Request) -> Response:
    return Response(b"x" * 10_000_001, media_type="application/json")


async def leads_astray(request: Request) -> Response:
    return RedirectResponse("http://example.invalid/rpc", 307)


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (breaks_off, "HTTP Error 503"),
        (talks_nonsense, "Invalid JSON-RPC response"),
        (sends_bad_json, "Invalid JSON-RPC response in SSE stream"),
        (sends_the_wrong_shape, "Failed to parse"),
        (sends_nothing, "stopped without an answer"),
        (sends_too_much, "its response is larger than 10,000,000 bytes"),
        (claims_too_much, "its response is larger than 10,000,000 bytes"),
        (leads_astray, "it redirects to another host, 'example.invalid', which was not configured"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_protocol_violations_are_error_results(endpoint: Endpoint, words: str) -> None:
    with serving_badly(endpoint) as url:
        session, _ = delegating_session(url, "Bergen")
        result = await session.run("go")

    (_, (kind, id_, status, content)) = delegation_summaries(await session.events())
    assert (kind, id_, status, words in content, result.answer) == ("response", "1", "error", True, "Done."), content


async def test_an_unreachable_agent_is_an_error_result() -> None:
    with serving_plain(PlainAgent(never)) as url:
        pass
    session, model = delegating_session(url, "Bergen", description="Knows the weather.")

    result = await session.run("go")

    description = model.requests[0].tools[0]["function"]["description"]
    error = result.results["1"]["error"]
    assert (error.split(":")[0], UNCERTAIN in error, "Knows the weather." in description, result.answer) == (
        "The agent 'researcher' failed to answer",
        False,
        True,
        "Done.",
    )


async def test_an_equal_delegation_after_a_lost_connection_is_asked_about_as_uncertain() -> None:
    asked = asks(("1", "delegate_to_researcher", {"task": "Book room 7."}))
    with serving_badly(breaks_off) as url:
        agent = create_graph_agent(
            ScriptedChatModel([asked, asked]),
            delegates=[A2ADelegate("researcher", url)],
            config=LoopConfig(approve="delegate_to_researcher"),
            checkpointer=InMemorySaver(),
        )
        session = agent.session("s1")
        first = await session.run("Book room 7.")
        second = await session.resume(approve())

    assert [each.interrupts[0].value.get("uncertain") for each in (first, second)] == [None, [True]]


async def never(text: str, updater: TaskUpdater, context: RequestContext) -> None:
    await asyncio.Event().wait()


async def silent(text: str, updater: TaskUpdater, context: RequestContext) -> None:
    await updater.start_work()
    await asyncio.Event().wait()


async def test_a_silent_agent_receives_a_cancel_request() -> None:
    with serving_plain(agent := PlainAgent(silent)) as url:
        result = await delegate_to(A2ADelegate("researcher", url, timeout_s=2))
        cancelled = await asyncio.to_thread(agent.cancelled.wait, 30)

    text = f"The agent 'researcher' was silent for 2 seconds, or time ran out; its task was cancelled. {UNCERTAIN}"
    assert (result, cancelled) == (DelegationResult(text, "error"), True)


async def test_an_agent_without_a_task_id_cannot_be_cancelled() -> None:
    agent = PlainAgent(never)
    agent.makes_tasks = False
    with serving_plain(agent) as url:
        result = await delegate_to(A2ADelegate("researcher", url, timeout_s=2))

    text = (
        f"The agent 'researcher' was silent for 2 seconds, or time ran out; its task may still be running. {UNCERTAIN}"
    )
    assert result == DelegationResult(text, "error")


class Late(PlainAgent):
    """An agent that takes its time before it names the task."""

    def __init__(self) -> None:
        super().__init__(silent)
        self.asked, self.may_name = threading.Event(), threading.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.asked.set()
        await asyncio.to_thread(self.may_name.wait, 30)
        await super().execute(context, event_queue)


async def test_cancelling_before_the_first_event_cancels_the_task() -> None:
    with serving_plain(agent := Late()) as url:
        run = asyncio.create_task(delegate_to(A2ADelegate("researcher", url)))
        await asyncio.to_thread(agent.asked.wait, 30)
        run.cancel()
        await asyncio.sleep(0)
        agent.may_name.set()
        await asyncio.wait([run])
        cancelled = await asyncio.to_thread(agent.cancelled.wait, 30)

    assert (run.cancelled(), cancelled) == (True, True)


async def test_progress_events_extend_the_timeout() -> None:
    steps = 5

    async def slow(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        for _ in range(steps):
            # Each pause is shorter than the timeout, and all of them together are longer.
            await asyncio.sleep(0.7)
            await updater.start_work()
        await answer(updater, Part(text="at last"))

    with serving_plain(PlainAgent(slow)) as url:
        result = await delegate_to(A2ADelegate("researcher", url, timeout_s=3))

    assert result.content == "at last"


async def test_a_delegate_is_abandoned_at_the_deadline() -> None:
    async def chatty(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        while True:
            await updater.start_work()
            await asyncio.sleep(0.05)

    with serving_plain(agent := PlainAgent(chatty)) as url:
        result = await delegate_to(A2ADelegate("researcher", url, timeout_s=60), budget=RemainingBudget(deadline_s=2))
        cancelled = await asyncio.to_thread(agent.cancelled.wait, 30)

    assert (result.status, cancelled) == ("error", True)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("failed", "The agent 'researcher' failed. Its message: no way"),
        ("reject", "The agent 'researcher' rejected the task. Its message: no way"),
        ("cancel", "The agent 'researcher' cancelled the task. Its message: no way"),
        (
            "requires_auth",
            "The agent 'researcher' requires an authentication that this agent does not have. Its message: no way",
        ),
    ],
)
async def test_a_task_that_does_not_succeed(end: str, text: str) -> None:
    async def ends(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        await getattr(updater, end)(updater.new_agent_message([Part(text="no way")]))

    with serving_plain(PlainAgent(ends)) as url:
        result = await delegate_to(A2ADelegate("researcher", url))

    assert (result.status, result.content, result.untrusted) == ("error", text, True)


async def test_impossible_usage_values_are_ignored() -> None:
    async def boasts(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        await updater.add_artifact([Part(text="Rain.")])
        usage = {"totalTokens": 1e300, "inputTokens": 1.5, "outputTokens": -1, "modelCalls": "many"}
        await updater.update_status(TaskState.TASK_STATE_COMPLETED, metadata={EXTENSION: {"usage": usage}})

    with serving_plain(PlainAgent(boasts)) as url:
        session, _ = delegating_session(url, "Bergen")
        result = await session.run("go")
        own = result.usage["total_tokens"] < 10_000

    assert (result.status, result.results["1"], own) == ("COMPLETED", "Rain.", True)


async def test_a_killed_agent_process_is_an_error_result() -> None:
    command = [warm_python(), "-m", "tests.support.a2a_stuck_agent"]
    root = Path(__file__).parents[3]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=root)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        progress: list[str] = []

        def kill(text: str) -> None:
            progress.append(text)
            process.kill()

        result = await delegate_to(A2ADelegate("researcher", url), report_progress=kill)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()  # its end alone may come before that of its output, which then stays open

    words = "The agent 'researcher' failed to answer"
    content = str(result.content)
    assert (result.status, content.split(":")[0], content.endswith(f". {UNCERTAIN}"), progress) == (
        "error",
        words,
        True,
        ["begun"],
    )


def card_of_another_host(url: str) -> AgentCard:
    return plain_card(url, at="http://example.invalid/rpc")


async def test_a_card_with_a_url_on_another_host_is_refused() -> None:
    with serving_badly(talks_nonsense, card_of_another_host) as url:
        result = await delegate_to(A2ADelegate("researcher", url))

    assert result.content == (
        "The agent 'researcher' failed to answer: its card names "
        "http://example.invalid/rpc, which is not a configured host; correct the card, or allow that host with "
        "'allowed_origins'"
    )


async def test_a_card_may_name_an_allowed_host() -> None:
    async def plainly(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        await answer(updater, Part(text="ok"))

    with ExitStack() as stack:
        other = stack.enter_context(serving_plain(PlainAgent(plainly)))
        url = stack.enter_context(serving_badly(talks_nonsense, lambda url: plain_card(url, at=f"{other}/rpc")))
        refused = await delegate_to(A2ADelegate("researcher", url))
        allowed = await delegate_to(A2ADelegate("researcher", url, allowed_origins=[other]))

    assert (refused.status, allowed.content) == ("error", "ok")


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        (A2AAuth(bearer_env="TEST_A2A_SECRET"), "authorization", "Bearer s3cret-token"),
        (A2AAuth(api_key_env="TEST_A2A_SECRET"), "x-api-key", "s3cret-token"),
        (A2AAuth(api_key_env="TEST_A2A_SECRET", header="X-Mine"), "x-mine", "s3cret-token"),
    ],
    ids=["bearer", "key", "own header"],
)
async def test_a_secret_is_sent_but_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, auth: A2AAuth, header: str, value: str
) -> None:
    async def parrot(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        given = context.call_context.state["headers"][header]
        await updater.start_work(updater.new_agent_message([Part(text=f"you sent {given}")]))
        await answer(updater, Part(text=f"your secret is {given}"))

    monkeypatch.setenv("TEST_A2A_SECRET", "s3cret-token")
    with serving_plain(agent := PlainAgent(parrot)) as url, caplog.at_level(logging.DEBUG, "graph_agent"):
        session, model = delegating_session(url, "Bergen", auth=auth)
        await session.run("go")

    everything = json.dumps([await session.events(), str(model.requests)])
    assert (agent.headers[0][header], "s3cret-token" in everything, "[secret]" in everything) == (value, False, True)
    assert "s3cret-token" not in caplog.text


async def test_an_unset_secret_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_A2A_SECRET", raising=False)

    result = await delegate_to(A2ADelegate("r", "http://127.0.0.1:1", auth=A2AAuth(bearer_env="TEST_A2A_SECRET")))

    assert result.content == (
        "The agent 'r' failed to answer: the environment variable TEST_A2A_SECRET is not set; "
        "it holds the secret for this agent"
    )


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:9001", "", "http://"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of an agent"):
        A2ADelegate("r", url)
