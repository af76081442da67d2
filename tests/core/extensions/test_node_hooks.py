"""`before_` and `after_` hooks of middleware: their order, jumps, edits, failures and interrupts."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
    hook_config,
)
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Overwrite, interrupt
from pydantic import BaseModel

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import DecisionError, RunFailedError
from graph_agent.session.results import Token
from tests.support.agents import add, asks, dialogue, echo, kinds, thread

ECHO = asks(("a", "echo", {"text": "hi"}))


def session_of(replies: list[Any], *hooks: Any, tools: Any = (echo,), **options: Any) -> Session:
    options = {"checkpointer": InMemorySaver(), **options}
    return Session(
        create_graph_agent(ScriptedChatModel(replies), tools=list(tools), hooks=list(hooks), **options), "s1"
    )


async def history(session: Session) -> list[tuple[str, str]]:
    return dialogue((await session.graph.aget_state(thread())).values["messages"])


class Recorder(AgentMiddleware[Any, Any, Any]):
    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.label = name
        self.calls = calls

    @property
    def name(self) -> str:
        return self.label

    def before_agent(self, state: Any, runtime: Any) -> None:
        self.calls.append(f"{self.label} before agent")

    async def abefore_model(self, state: Any, runtime: Any) -> None:
        self.calls.append(f"{self.label} before {len(state['messages'])}")

    def after_model(self, state: Any, runtime: Any) -> None:
        self.calls.append(f"{self.label} after {state['messages'][-1].text or 'calls'}")

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        self.calls.append(f"{self.label} after agent")


@pytest.mark.parametrize("blocking", [False, True])
async def test_hooks_run_in_order_around_each_request(blocking: bool) -> None:
    calls: list[str] = []
    graph = create_graph_agent(
        ScriptedChatModel([ECHO, "Done."]), tools=[echo], hooks=[Recorder("x", calls), Recorder("y", calls)]
    )
    given = {"messages": [("user", "go")]}

    if blocking:
        import asyncio

        await asyncio.to_thread(graph.invoke, given)
    else:
        await graph.ainvoke(given)

    assert calls == [
        *["x before agent", "y before agent"],
        *["x before 1", "y before 1", "y after calls", "x after calls"],
        *["x before 3", "y before 3", "y after Done.", "x after Done."],
        *["y after agent", "x after agent"],
    ]


def test_an_agent_without_such_hooks_has_no_further_nodes() -> None:
    plain = create_graph_agent(ScriptedChatModel([]), tools=[echo])

    assert sorted(plain.get_graph().nodes) == ["__end__", "__start__", "delegate", "finalize", "plan", "tools"]


async def test_an_interrupt_after_the_model_does_not_repeat_its_request() -> None:
    @after_model
    def ask(state: Any, runtime: Any) -> dict[str, Any] | None:
        word = interrupt("Say what?")
        return {"messages": [state["messages"][-1].model_copy(update={"content": word})]}

    session = session_of(["Hello."], ask)
    asked = await session.run("hi")

    done = await session.resume("Good day.")

    assert (asked.interrupts[0].value, asked.answer, done.answer, done.usage["model_calls"]) == (
        "Say what?",
        "",
        "Good day.",
        1,
    )


@pytest.mark.parametrize("hook", [before_agent, before_model, after_model])
async def test_a_jump_to_the_end_completes_the_input(hook: Any) -> None:
    def stop(state: Any, runtime: Any) -> dict[str, Any]:
        return {"jump_to": "end", "messages": [AIMessage("Not today.")]}

    session = session_of([ECHO], hook(can_jump_to=["end"])(stop))

    ran = await session.run("go")

    events = await session.events()
    jumps = [dict(event)["jump_to"] for event in events if event["type"] == "middleware"]
    assert (ran.answer, ran.status, ran.stop_reason, jumps, (await history(session))[-1]) == (
        "Not today.",
        "COMPLETED",
        "completed",
        ["end"],
        ("ai", "Not today."),
    )


@pytest.mark.parametrize("note", [("user", "Be brief."), {"role": "user", "content": "Be brief."}, "Be brief."])
async def test_a_message_in_another_form_is_in_the_event_of_its_hook(note: Any) -> None:
    @before_agent
    def add(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [note]}

    session = session_of(["Hello."], add)

    await session.run("hi")

    written = [dict(event)["messages"] for event in await session.events() if event["type"] == "middleware"]
    assert written == [[{"type": "human", "content": "Be brief."}]]


async def test_an_overwrite_of_messages_must_hold_a_list() -> None:
    @before_agent
    def replace(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": Overwrite("Be brief.")}

    failed = await session_of(["Hello."], replace).run("hi")

    assert (failed.status, "its Overwrite holds a str, not a list; return messages" in failed.error) == ("FAILED", True)


async def test_calls_of_a_reply_that_a_hook_ends_are_settled() -> None:
    @after_model(can_jump_to=["end"])
    def stop(state: Any, runtime: Any) -> dict[str, Any]:
        return {"jump_to": "end"}

    session = session_of([ECHO], stop)

    ran = await session.run("go")

    reason = "Not run: middleware ended the work before this call."
    assert (ran.answer, ran.results) == ("Middleware ended this request.", {"a": {"error": reason}})


async def test_a_jump_to_the_model_asks_again_within_the_step_limit() -> None:
    @after_model(can_jump_to=["model"])
    def again(state: Any, runtime: Any) -> dict[str, Any] | None:
        if "sorry" in state["messages"][-1].text:
            return {"jump_to": "model", "messages": [HumanMessage("No excuses.")]}
        return None

    once = await session_of(["I am sorry.", "It is 4."], again).run("2 + 2?")
    endless = session_of(["I am sorry."] * 9, again, config=LoopConfig(max_steps=2, on_limit="message"))
    limited = await endless.run("2 + 2?")

    assert (once.answer, limited.answer, limited.status) == (
        "It is 4.",
        "Reached maximum reasoning steps (2)",
        "ROUND_LIMIT",
    )


async def test_a_jump_that_is_not_declared_has_no_effect() -> None:
    @before_model
    def stop(state: Any, runtime: Any) -> dict[str, Any]:
        return {"jump_to": "end"}

    assert (await session_of(["Hello."], stop).run("go")).answer == "Hello."


async def test_a_hook_may_change_and_answer_calls() -> None:
    @after_model
    def edit(state: Any, runtime: Any) -> dict[str, Any] | None:
        last = state["messages"][-1]
        calls = [{**call, "args": {"text": "changed"}} for call in last.tool_calls if call["id"] == "a"]
        return {"messages": [last.model_copy(update={"tool_calls": calls})]} if calls else None

    replies = [asks(("a", "echo", {"text": "x"}), ("b", "echo", {"text": "y"})), "Done."]
    session = session_of(replies, edit)

    ran = await session.run("go")

    removed = "Not run: middleware took this call out of the plan."
    assert (ran.answer, ran.results) == ("Done.", {"a": "changed", "b": {"error": removed}})


async def test_a_hook_after_the_agent_replaces_the_answer_before_it_is_recorded_and_shown() -> None:
    @after_agent
    def guard(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [state["messages"][-1].model_copy(update={"content": "Removed."})]}

    session = session_of(["A secret."], guard)

    parts = [part async for part in session.stream("go")]

    answers = [event["content"] for event in await session.events() if event["type"] == "agent_response"]
    assert ([part.text for part in parts if isinstance(part, Token)], answers) == (["Removed."], ["Removed."])


@pytest.mark.parametrize("hook", [before_agent, before_model, after_model, after_agent])
async def test_an_exception_of_a_hook_fails_the_input(hook: Any) -> None:
    def broken(state: Any, runtime: Any) -> None:
        raise LookupError("no such thing")

    session = session_of([ECHO, "Done."] * 2, hook(broken))
    failed = await session.run("go")
    with pytest.raises(RunFailedError) as raised:
        await session.run("go", context={"on_failure": "raise"})

    assert (failed.status, "no such thing" in failed.error, type(raised.value.__cause__)) == (
        "FAILED",
        True,
        LookupError,
    )


@pytest.mark.parametrize(
    ("mode", "replies"),
    [
        ("native", [ECHO, "No more actions.", "Done."]),
        ("text", [ECHO, "No more actions.", "Done."]),
        ("wave", ['{"status": "done", "tools": [{"id": "a", "tool": "echo", "args": {"text": "hi"}}]}', "Done."]),
    ],
)
async def test_hooks_also_see_an_answer_that_is_composed(mode: Any, replies: list[str]) -> None:
    seen: list[str] = []

    @after_model
    def rewrite(state: Any, runtime: Any) -> dict[str, Any] | None:
        last = state["messages"][-1]
        seen.append(last.text)
        return {"messages": [last.model_copy(update={"content": "Done!"})]} if last.text == "Done." else None

    session = session_of(replies, rewrite, config=LoopConfig(tool_calling=mode))

    parts = [part async for part in session.stream("go")]

    texts = [text for kind, text in await history(session) if kind == "ai"]
    assert (
        seen[-1],
        len(seen),
        texts[-1],
        "No more actions." in texts,
        "".join(part.text for part in parts if isinstance(part, Token)),
    ) == ("Done.", len(replies), "Done!", False, "Done!")


async def test_a_structured_answer_passes_the_hooks() -> None:
    class Sum(BaseModel):
        total: int

    @after_model
    def look(state: Any, runtime: Any) -> None:
        return None

    replies = [asks(("a", "add", {"a": 2, "b": 2})), '{"total": 4}']
    ran = await session_of(replies, look, tools=[add], response_format=Sum).run("2 + 2?")

    assert ran.structured_response == Sum(total=4)


async def test_new_input_in_place_of_an_answer_settles_the_calls_that_wait() -> None:
    @after_model
    def ask(state: Any, runtime: Any) -> None:
        if state["messages"][-1].tool_calls:
            interrupt("May I?")

    session = session_of([ECHO, "Something else."], ask)
    await session.run("go")

    ran = await session.run("never mind")

    results = [dict(event)["status"] for event in await session.events() if event["type"] == "tool_result"]
    assert (ran.answer, results, kinds(await session.events()).count("tool_call")) == (
        "Something else.",
        ["skipped"],
        0,
    )


class Jumper(AgentMiddleware[Any, Any, Any]):
    @hook_config(can_jump_to=["tools"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        if len(state["messages"]) > 1:
            return None
        call = {"name": "echo", "args": {"text": "first"}, "id": "made", "type": "tool_call"}
        return {"jump_to": "tools", "messages": [AIMessage("", tool_calls=[call])]}


async def test_a_hook_jumps_to_tools_with_calls_of_its_own() -> None:
    ran = await session_of(["Done."], Jumper()).run("go")

    assert (ran.answer, ran.results) == ("Done.", {"made": "first"})


async def test_approvals_and_hooks_work_together() -> None:
    seen: list[str] = []

    @after_model
    def look(state: Any, runtime: Any) -> None:
        seen.append(state["messages"][-1].text or "calls")

    replies = [asks(("a", "echo", {"text": "x"}), ("b", "add", {"a": 1, "b": 1})), "Done."]
    session = session_of(replies, look, tools=[echo, add], config=LoopConfig(approve=("echo",)))
    asked = await session.run("go")

    done = await session.resume({"decisions": [{"type": "approve"}]})

    assert (len(asked.interrupts), done.answer, done.results, seen) == (
        1,
        "Done.",
        {"a": "x", "b": 2},
        ["calls", "Done."],
    )


async def test_an_answer_per_call_that_does_not_fit_is_an_error_and_can_be_given_again() -> None:
    hook = HumanInTheLoopMiddleware({"echo": True}, interrupt_mode="per_call")
    session = session_of([ECHO, "Done."], hook)
    await session.run("go")
    with pytest.raises(DecisionError):
        await session.resume({"type": "perhaps"})

    done = await session.resume({"type": "approve"})

    assert (done.answer, done.results) == ("Done.", {"a": "hi"})
