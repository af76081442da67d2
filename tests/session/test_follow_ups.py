"""Follow-ups: each is an input of its own, and the input before it keeps its own answer."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session
from graph_agent.approvals import HeldCall, approve
from graph_agent.errors import ConfigError, SessionBusyError
from graph_agent.session.activity import lock_idle_session
from graph_agent.session.results import Done, Token
from tests.support.agents import asks
from tests.support.approvals import Desk
from tests.support.sessions import new_session


async def test_a_stream_ends_each_input_before_it_begins_the_next() -> None:
    talk = new_session(ScriptedChatModel(["One.", "Two."]))
    await talk.follow_up("two")

    parts = [part async for part in talk.stream("one") if isinstance(part, Token | Done)]

    first, second = [parts.index(part) for part in parts if isinstance(part, Done)]
    inputs = [parts[: first + 1], parts[first + 1 : second + 1]]
    texts = ["".join(part.text for part in of if isinstance(part, Token)) for of in inputs]
    results = [part.result.answer for part in parts if isinstance(part, Done)]
    assert (texts, results, parts[second + 1 :]) == (["One.", "Two."], ["One.", "Two."], [])


async def test_a_stream_that_is_left_at_its_own_answer_leaves_the_follow_up_queued() -> None:
    talk = new_session(ScriptedChatModel(["One.", "Two."]))
    await talk.follow_up("two")
    async with aclosing(talk.stream("one")) as parts:
        async for part in parts:
            if isinstance(part, Done):
                break
    queued = await talk.driver.control.pending("follow_up")

    results = await talk.run_follow_ups()

    assert (queued, [result.answer for result in results], await talk.run_follow_ups()) == (["two"], ["Two."], [])


async def test_a_run_of_the_bare_graph_ends_with_its_own_answer() -> None:
    talk = new_session(ScriptedChatModel(["One.", "Two."]))
    await talk.follow_up("two")

    state = await talk.graph.ainvoke({"messages": [("user", "one")]}, {"configurable": {"thread_id": "s1"}})
    [followed] = await talk.run_follow_ups()

    assert (state["messages"][-1].text, followed.answer) == ("One.", "Two.")


async def test_a_follow_up_that_raises_leaves_the_answer_before_it(caplog: pytest.LogCaptureFixture) -> None:
    prompts = iter(["Be kind."])

    def prompt() -> str:
        if (text := next(prompts, None)) is None:
            raise ConfigError("There is no prompt left.")
        return text

    talk = new_session(ScriptedChatModel(["One."]), system_prompt=prompt)
    await talk.follow_up("two")

    result = await talk.run("one")

    assert (result.answer, result.follow_ups, "There is no prompt left." in caplog.text) == ("One.", (), True)


async def test_a_result_is_read_before_another_run_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    talk = new_session(ScriptedChatModel(["One."]))
    read = talk.graph.aget_state

    async def run_and_read(config: Any) -> Any:
        try:
            await Session(talk.graph, talk.id).run("two")
        except SessionBusyError:
            refused.append("two")
        return await read(config)

    monkeypatch.setattr(talk.graph, "aget_state", run_and_read)
    result = await talk.run("one")

    assert (result.answer, refused) == ("One.", ["two"])


async def test_a_follow_up_that_cannot_resume_because_the_session_is_busy_ends_its_stream_with_an_error() -> None:
    saver = InMemorySaver()
    desk = Desk("One.", asks(("1", "write", {"path": "1"})), "Two.", checkpointer=saver)
    await desk.session.follow_up("two")

    async with AsyncExitStack() as held:

        async def decide(call: HeldCall) -> bool:
            await held.enter_async_context(lock_idle_session(saver, "s1"))
            return True

        with pytest.raises(SessionBusyError):
            _ = [part async for part in desk.session.stream("one", on_approval=decide)]

    assert (await desk.session.resume(approve())).answer == "Two."
