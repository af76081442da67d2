"""`resume` of a session, at any point and with any answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.chat.run import ServerRun
from graph_agent.interfaces.server.chat.run_spec import RunSpec
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.session.results import run_result
from tests.interfaces.server.hosting import MINE, answered, ask, outcome_of, running, sessions_of, spec_of, with_results
from tests.support.agents import asks
from tests.support.doors import PLAIN, doors_of


@tool
def choose(what: str) -> str:
    """Have a person choose."""
    return f"{what}: {interrupt(what)}"


@tool
def work() -> str:
    """Work."""
    return "worked"


@pytest.mark.parametrize(
    "answer", ["red", {"0" * 32: "red"}, {"color": "red"}], ids=["no id", "an unknown id", "a mapping without ids"]
)
async def test_an_answer_to_another_interrupt_is_refused(answer: Any) -> None:
    model = ScriptedChatModel([asks(("c1", "choose", {"what": "color"}), ("c2", "choose", {"what": "size"}))])
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=[choose])) as runs:
        await answered(runs.host, ask(session_id="s"))
        sessions = sessions_of(runs)
        before = await sessions.info("s")
        with pytest.raises(ProblemError) as error:
            await sessions.resume("s", answer)

        assert (error.value.kind, await sessions.info("s")) == ("conflict", before)


RESUMES: dict[str, tuple[str, Any]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "red"}]}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "red"}], "max_tokens": 9}),
    "responses": ("/v1/responses", {"input": "red"}),
    "resume": ("/sessions/s/resume", {"answer": "red"}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("door", RESUMES)
async def test_an_answer_to_an_interrupt_that_was_answered_meanwhile_is_refused(
    monkeypatch: pytest.MonkeyPatch, door: str, stream: bool
) -> None:
    run = Runs.run

    @asynccontextmanager
    async def overtaken(self: Runs, spec: RunSpec, **options: Any) -> AsyncIterator[ServerRun]:
        await Session(self.host.kept, spec.thread).resume("blue")
        async with run(self, spec, **options) as started:
            yield started

    model = ScriptedChatModel([asks(("c1", "choose", {"what": "color"})), "Painted."])
    graph = create_graph_agent(model, tools=[choose])
    path, body = RESUMES[door]
    async with asyncio.timeout(60), doors_of(graph, PLAIN) as (_, http):
        await http.post("/v1/responses", json={"model": "agent", "input": "go"}, headers={"x-session-id": "s"})
        monkeypatch.setattr(Runs, "run", overtaken)
        options = {"model": "agent", "stream": stream} if path.startswith("/v1") else {}
        late = await http.post(path, json={**options, **body}, headers={"x-session-id": "s"})
        state = (await http.get("/sessions/s")).json()

    assert (late.status_code, "is for interrupts that are not open" in late.text, state["answer"]) == (
        409,
        True,
        "Painted.",
    )


async def test_an_answer_without_an_open_interrupt_is_refused() -> None:
    model = ScriptedChatModel([asks(("c1", "work", {})), "No more actions.", "Done."])
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=[work])) as runs:
        await _lost_behind(runs.host, stored=2)
        with pytest.raises(ProblemError) as error:
            await sessions_of(runs).resume("s", "red")

    assert error.value.kind == "conflict"


@pytest.mark.parametrize("stored", range(1, 6))
async def test_a_session_resumes_after_an_unstored_step(stored: int) -> None:
    model = ScriptedChatModel([asks(("c1", "work", {})), "No more actions.", "Done."])
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=[work])) as runs:
        await _lost_behind(runs.host, stored)
        info = await sessions_of(runs).resume("s", None)

    assert (info["status"], info["answer"]) == ("COMPLETED", "Done.")


async def test_a_follow_up_has_its_own_answer_and_usage() -> None:
    script = [_used(input_tokens=1000), _used("No more actions."), _used("Done."), _used("Next.", input_tokens=50)]
    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel(script))) as runs:
        waiting = await answered(runs.host, ask(client_tools=[MINE], session_id="s"))
        await (await sessions_of(runs).session("s")).follow_up("And then?")
        spec = await spec_of(runs.host, with_results(waiting.calls, session_id="s"))
        async with runs.run(spec, streams=False) as resumed:
            outcome = await outcome_of(resumed)
        assert resumed.following is not None
        await resumed.following
        followed = run_result(await runs.host.kept.aget_state(spec.config))

    assert (outcome.text, outcome.input_tokens, outcome.output_tokens) == ("Done.", 2, 2)
    assert (followed.answer, followed.usage["input_tokens"]) == ("Next.", 50)


async def _lost_behind(host: Host, stored: int) -> None:
    """A session that died when it had stored so many checkpoints: the next one could not be."""
    put, count = host.saver.aput, 0

    async def failing(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count > stored:
            raise OSError("no room")
        return await put(*args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host.saver, "aput", failing)
        with pytest.raises(ProblemError):
            await answered(host, ask(session_id="s"))


def _used(text: str = "", *, input_tokens: int = 1) -> AIMessage:
    """A reply of one output token; without words it calls the caller's tool."""
    calls: Any = [] if text else [{"id": "c1", "name": "mine", "args": {}, "type": "tool_call"}]
    used: Any = {"input_tokens": input_tokens, "output_tokens": 1, "total_tokens": input_tokens + 1}
    return AIMessage(text, tool_calls=calls, usage_metadata=used)
