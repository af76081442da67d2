"""Loop hooks: their actions on a planning reply, and their bounds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt

from graph_agent import (
    LoopConfig,
    LoopHook,
    LoopPlan,
    RequestPatch,
    RunResult,
    ScriptedChatModel,
    Session,
    create_graph_agent,
)
from graph_agent.core.planning.prepared_history import with_carried
from graph_agent.core.state.schema import RequestOnlyMessages
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.session.results import Token
from tests.support.agents import add, asks, dialogue, echo, kinds, says
from tests.support.hooks import DONE, RERUN, FixedPlanHook
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

ECHO_A = asks(("c1", "echo", {"text": "a"}))
ECHO_B = asks(("c2", "echo", {"text": "b"}))
PLAN_A = '{"status": "continue", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "a"}}]}'


class DoesAsync(FixedPlanHook):
    """The same with coroutines."""

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:  # type: ignore[override]  # a coroutine is one of the two ways
        return super().should_run(response, request)

    async def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:  # type: ignore[override]  # as above
        return super().build_plan(context, response, request)


async def run(script: list[str], *hooks: Any, tools: Any = (echo,), **config: Any) -> tuple[RunResult, list[Any]]:
    graph = create_graph_agent(
        ScriptedChatModel(script), tools=tools, hooks=hooks, config=LoopConfig(**config), checkpointer=InMemorySaver()
    )
    session = Session(graph, "s1")
    return await session.run("go"), await session.events()


def texts_of(events: list[Any], kind: str) -> list[str]:
    return [event["message"] for event in events if event["type"] == kind]


@pytest.mark.parametrize("kind", [FixedPlanHook, DoesAsync], ids=["blocking", "coroutines"])
@pytest.mark.parametrize(
    ("mode", "script"),
    [
        ("native", [ECHO_A, ECHO_B, "No more actions.", "Done."]),
        ("text", [ECHO_A, ECHO_B, "No more actions.", "Done."]),
        ("wave", [PLAN_A, PLAN_A.replace('"a"', '"b"'), DONE, "Done."]),
    ],
)
async def test_a_rerun_replaces_the_reply(kind: type[FixedPlanHook], mode: Any, script: list[str]) -> None:
    hook = kind(RERUN)

    result, events = await run(script, hook, tool_calling=mode)

    called = [event["arguments"] for event in events if event["type"] == "tool_call"]
    assert (result.answer, called, hook.seen, result.usage["model_calls"]) == (
        "Done.",
        [{"text": "b"}],
        [(0, ["echo"]), (1, ["echo"]), (0, []), (0, [])],
        4,
    )


async def test_hooks_run_in_order_until_one_acts() -> None:
    first, second, third = (
        FixedPlanHook(LoopPlan()),
        FixedPlanHook(RERUN),
        FixedPlanHook(LoopPlan(response_override="never")),
    )
    third.times = 0

    await run([ECHO_A, "No more actions.", "Done."], first, second, third)

    answer: tuple[int, list[str]] = (0, [])
    assert (first.seen, second.seen, third.seen) == (
        [(0, ["echo"]), (1, []), answer],
        [(0, ["echo"]), (1, []), answer],
        [(1, []), answer],
    )


@pytest.mark.parametrize("finalize", ["compose", "direct"])
async def test_an_override_is_the_answer(finalize: Any) -> None:
    model = ScriptedChatModel([ECHO_A])
    graph = create_graph_agent(
        model,
        tools=[echo],
        hooks=[FixedPlanHook(LoopPlan(response_override="From the hook."))],
        config=LoopConfig(finalize=finalize),
        checkpointer=InMemorySaver(),
    )
    session = Session(graph, "s1")

    parts = [part async for part in session.stream("go")]

    model.assert_spent()
    result = parts[-1].result  # type: ignore[union-attr]  # the last part is Done
    assert (
        [part.text for part in parts if isinstance(part, Token)],
        result.answer,
        result.status,
        kinds(await session.events()),
    ) == (
        ["From the hook."],
        "From the hook.",
        "COMPLETED",
        ["user_message", "status", "hook", "plan", "agent_response", "status"],
    )


@pytest.mark.parametrize(
    ("script", "answer", "conversation"),
    [
        (
            [asks(("c1", "echo", {"text": "a"}), content="I would echo.")],
            "I would echo.",
            [
                ("human", "go"),
                ("ai", ""),
                ("tool", "Not run: a hook ended the work with this reply."),
                ("ai", "I would echo."),
            ],
        ),
        (
            [ECHO_A, "Nothing was echoed."],
            "Nothing was echoed.",
            [
                ("human", "go"),
                ("ai", ""),
                ("tool", "Not run: a hook ended the work with this reply."),
                ("ai", "Nothing was echoed."),
            ],
        ),
        (["No more actions.", "Hello."], "Hello.", [("human", "go"), ("ai", "Hello.")]),
    ],
    ids=["text with calls", "calls alone", "no calls"],
)
async def test_a_hook_can_end_the_loop(script: list[str], answer: str, conversation: list[tuple[str, str]]) -> None:
    graph = create_graph_agent(
        ScriptedChatModel(script),
        tools=[echo],
        hooks=[FixedPlanHook(LoopPlan(terminate=True))],
        checkpointer=InMemorySaver(),
    )
    session = Session(graph, "s1")

    result = await session.run("go")

    messages = (await graph.aget_state({"configurable": {"thread_id": "s1"}})).values["messages"]
    skipped = [event["status"] for event in await session.events() if event["type"] == "tool_result"]
    assert (result.answer, result.status, dialogue(messages), skipped) == (
        answer,
        "COMPLETED",
        conversation,
        ["skipped"] * (len(conversation) == 4),
    )


class SaysNo(LoopHook):
    """Requests a rerun of every reply."""

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return bool(response.calls), None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        return RERUN


@pytest.mark.parametrize(
    ("config", "calls", "warning"),
    [
        ({}, 4, "the model was asked again 3 times, which is all that max_agentic_loops allows"),
        ({"max_agentic_loops": 1}, 2, "the model was asked again 1 times, which is all that max_agentic_loops allows"),
        ({"max_agentic_loops": 0}, 1, "the model was asked again 0 times, which is all that max_agentic_loops allows"),
    ],
    ids=["default", "one", "none"],
)
async def test_reruns_are_bounded(config: dict[str, Any], calls: int, warning: str) -> None:
    script = [asks((f"c{i}", "echo", {"text": str(i)})) for i in range(calls)]

    result, events = await run([*script, "No more actions.", "Done."], SaysNo(), on_limit="message", **config)

    echoed = [event["content"] for event in events if event["type"] == "tool_result"]
    assert (texts_of(events, "warning"), echoed, result.status) == (
        [f"The hook SaysNo wants the model asked again, but {warning}; its last reply counts."],
        [str(calls - 1)],
        "COMPLETED",
    )


async def test_the_same_calls_twice_end_the_reruns() -> None:
    again = asks(("c2", "echo", {"text": "a"}))

    result, events = await run([ECHO_A, again, "No more actions.", "Done."], SaysNo())

    assert (result.answer, texts_of(events, "warning"), [e["reruns"] for e in events if e.get("reruns")]) == (
        "Done.",
        [
            "The hook SaysNo wants the model asked again, but the model makes the same calls again; "
            "its last reply counts."
        ],
        [1],
    )


class Broken(LoopHook):
    """Raises a given exception."""

    def __init__(self, plan: Any, on_error: Any) -> None:
        self.plan = plan
        self.on_error = on_error

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return self.plan == "no pair" or (True, None)

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        if isinstance(self.plan, Exception):
            raise self.plan
        plan: LoopPlan = self.plan
        return plan


def patched(**fields: Any) -> LoopPlan:
    return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(**fields))


FAULTS = [
    (ValueError("out of order"), "ValueError: out of order"),
    ("no pair", "TypeError: should_run returned True; return a pair (bool, context)"),
    ("no plan", "TypeError: build_plan returned 'no plan'; return a LoopPlan"),
    (LoopPlan(response_override=5), "TypeError: response_override is 5; give text or an AIMessage"),  # type: ignore[arg-type]  # the invalid input under test
    (GraphInterrupt(), "GraphInterrupt: "),
    (patched(messages=["hi"]), "TypeError: A patch's messages hold 'hi'; give LangChain messages"),
    (patched(tools=[{}]), "ValueError: {} is no tool; give an OpenAI schema or a LangChain tool ("),
    (patched(model="nowhere:model"), "ConfigError: RequestPatch.model: "),
]


@pytest.mark.parametrize(("plan", "message"), FAULTS)
async def test_a_hook_that_fails_fails_the_input(plan: Any, message: str) -> None:
    result, events = await run([ECHO_A], Broken(plan, "fail"))

    [error] = [event for event in events if event["type"] == "error"]
    assert (result.status, error["kind"], error["message"].startswith(f"The hook Broken failed: {message}")) == (
        "FAILED",
        "hook",
        True,
    )


@pytest.mark.parametrize(("plan", "message"), FAULTS)
async def test_a_failing_hook_is_skipped_with_on_error_skip(plan: Any, message: str) -> None:
    result, events = await run([ECHO_A, "No more actions.", "Done."], Broken(plan, "skip"))

    warnings = texts_of(events, "warning")
    assert (
        result.answer,
        len(warnings),
        len(set(warnings)),
        warnings[0].startswith(f"The hook Broken failed: {message}"),
    ) == ("Done.", 3, 1, True)


async def test_a_patch_changes_one_request(openai_stub: StubFactory) -> None:
    stub = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), "No more actions.", "Done.")
    plan = patched(
        messages=[HumanMessage("Another question.")],
        tools=[add],
        max_tokens=17,
        optional_params={"temperature": None, "stop": ["X"]},
        kwargs={"user": "u1"},
    )
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[FixedPlanHook(plan)], config=LoopConfig(temperature=0.5))

        state = await graph.ainvoke(says("go"))

    seen = [
        (
            next(message["content"] for message in body["messages"] if message["role"] == "user").partition("\n")[0],
            [tool["function"]["name"] for tool in body["tools"]],
            body.get("max_completion_tokens"),
            body.get("temperature"),
            body.get("stop"),
            body.get("user"),
        )
        for body in stub.bodies
    ]
    usual = ("go", ["echo"], None, 0.5, None, None)
    assert (seen, dialogue(state["messages"])) == (
        [usual, ("Another question.", ["add"], 17, None, ["X"], "u1"), usual],
        [("human", "go"), ("ai", "Done.")],
    )


async def test_a_patch_names_another_model(openai_stub: StubFactory) -> None:
    first, second = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), "Done."), openai_stub("No more actions.")
    async with first.chat_model() as model, second.chat_model("other") as other:
        graph = create_graph_agent(
            model,
            tools=[echo],
            hooks=[FixedPlanHook(patched(model="mine:other"))],
            resolve=lambda given: other if given == "mine:other" else given,
        )

        state = await graph.ainvoke(says("go"))

    assert (state["messages"][-1].text, len(first.bodies), [body["model"] for body in second.bodies]) == (
        "Done.",
        2,
        ["other"],
    )


async def test_a_patch_of_the_model_leaves_the_callers_choice_of_tools(openai_stub: StubFactory) -> None:
    theirs = Reply(tool_calls=(("theirs", {}),))
    first, second = openai_stub(theirs), openai_stub(theirs)
    schema = {"type": "function", "function": {"name": "theirs", "parameters": {"type": "object", "properties": {}}}}
    async with first.chat_model() as model, second.chat_model("other") as other:
        graph = create_graph_agent(
            model, tools=[echo], hooks=[FixedPlanHook(patched(model=other))], checkpointer=InMemorySaver()
        )
        context: Any = {"client_tools": [schema], "client_tool_choice": "any"}

        result = await Session(graph, "s1").run("go", context=context)

    asked = [
        ([each["function"]["name"] for each in body["tools"]], body.get("tool_choice"))
        for body in (*first.bodies, *second.bodies)
    ]
    assert (asked, [each.value["name"] for each in result.interrupts]) == (
        [(["echo", "theirs"], "required")] * 2,
        ["theirs"],
    )


async def test_a_rerun_falls_back_when_its_model_times_out(openai_stub: StubFactory) -> None:
    down = Failure(503, "Try later.", type="server_error", headers={"retry-after": "0"})
    first = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), down)
    second = openai_stub("No more actions.", "Done.")
    async with first.chat_model() as model, second.chat_model() as spare:
        config = LoopConfig(model_retries=0, fallback_models=(spare,))
        graph = create_graph_agent(model, tools=[echo], hooks=[FixedPlanHook(RERUN)], config=config)

        state = await graph.ainvoke(says("go"))

    assert (state["messages"][-1].text, len(first.bodies), len(second.bodies)) == ("Done.", 2, 2)


async def test_later_reruns_stay_with_the_fallback_model(openai_stub: StubFactory) -> None:
    down = Failure(503, "Try later.", type="server_error", headers={"retry-after": "0"})
    first = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), down)
    second = openai_stub(Reply(tool_calls=(("echo", {"text": "b"}),)), "No more actions.", "Done.")
    async with first.chat_model() as model, second.chat_model() as spare:
        config = LoopConfig(model_retries=0, fallback_models=(spare,))
        graph = create_graph_agent(model, tools=[echo], hooks=[FixedPlanHook(RERUN, times=2)], config=config)

        state = await graph.ainvoke(says("go"))

    assert (state["messages"][-1].text, len(first.bodies), len(second.bodies)) == ("Done.", 2, 3)


async def test_a_rerun_that_fails_ends_the_input(openai_stub: StubFactory) -> None:
    stub = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), Failure(401, "No.", code="invalid_api_key"))
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[FixedPlanHook(RERUN)], checkpointer=InMemorySaver())

        result = await Session(graph, "s1").run("go")

    assert (result.status, result.usage["model_calls"]) == ("FAILED", 1)


async def test_a_discarded_reply_is_not_streamed(openai_stub: StubFactory) -> None:
    stub = openai_stub("A first try.", "A second try.")
    async with stub.chat_model() as model:
        config = LoopConfig(finalize="direct")
        graph = create_graph_agent(
            model, tools=[echo], hooks=[FixedPlanHook(RERUN)], config=config, checkpointer=InMemorySaver()
        )

        parts = [part async for part in Session(graph, "s1").stream("go")]

    assert [part.text for part in parts if isinstance(part, Token)] == ["A second try."]


@pytest.mark.parametrize(
    ("sees_answers", "script", "tokens"),
    [
        (True, ["No more actions.", "No more actions.", "One two."], ["One two."]),
        (False, ["No more actions.", "One two."], ["One", " two."]),
        (False, ["One two."], ["One", " two."]),
    ],
)
async def test_an_answer_is_streamed_without_hooks_that_see_answers(
    openai_stub: StubFactory, sees_answers: bool, script: list[str], tokens: list[str]
) -> None:
    hook = FixedPlanHook(RERUN)
    hook.sees_answers = sees_answers
    stub = openai_stub(*script)
    async with stub.chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], hooks=[hook], checkpointer=InMemorySaver())

        parts = [part async for part in Session(graph, "s1").stream("go")]

    assert [part.text for part in parts if isinstance(part, Token)] == tokens


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_hooks_own_model_calls_are_counted_but_not_streamed(openai_stub: StubFactory, blocking: bool) -> None:
    stub, judge_stub = openai_stub("Done."), openai_stub("Fine by me.")
    async with stub.chat_model() as model, judge_stub.chat_model(streaming=True) as judge:

        class Judges(LoopHook):
            def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
                return judge.invoke("Is that so?").text == "no", None

        class JudgesAsync(LoopHook):
            async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
                return (await judge.ainvoke("Is that so?")).text == "no", None

        hook = Judges() if blocking else JudgesAsync()
        graph = create_graph_agent(model, tools=[echo], hooks=[hook], checkpointer=InMemorySaver())

        parts = [part async for part in Session(graph, "s1").stream("go")]

    result = parts[-1].result  # type: ignore[union-attr]  # the last part is Done
    assert ([part.text for part in parts if isinstance(part, Token)], result.usage) == (
        ["Done."],
        {"input_tokens": 22, "output_tokens": 14, "total_tokens": 36, "model_calls": 2},
    )


@pytest.mark.parametrize("blocking", [True, False])
async def test_an_abort_cancels_a_running_hook(blocking: bool) -> None:
    loop, begun, released = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    class Blocks(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            loop.call_soon_threadsafe(begun.set)
            released.wait()
            return False, None

    class Waits(LoopHook):
        async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            begun.set()
            await asyncio.Event().wait()
            return False, None

    hook = Blocks() if blocking else Waits()
    graph = create_graph_agent(ScriptedChatModel([ECHO_A]), tools=[echo], hooks=[hook], checkpointer=InMemorySaver())
    session = Session(graph, "s1")
    running = asyncio.create_task(session.run("go"))
    await begun.wait()

    await session.abort()

    result = await running
    released.set()
    assert (result.status, result.usage["model_calls"]) == ("ABORTED", 1)


async def test_an_agent_with_nothing_to_call_may_have_to_plan_in_waves() -> None:
    result, _ = await run(["Hello."], FixedPlanHook(RERUN, times=0), tools=(), tool_calling="wave")

    assert (result.answer, result.status, result.usage["model_calls"]) == ("Hello.", "COMPLETED", 1)


async def test_an_agent_with_nothing_to_call_answers_with_its_planning_reply() -> None:
    hook = FixedPlanHook(RERUN)

    result, _ = await run(["Hello.", "Good day."], hook, tools=())

    assert (result.answer, hook.seen, result.usage["model_calls"]) == ("Good day.", [(0, []), (1, [])], 2)


async def test_kept_messages_stay_in_requests_until_the_answer(openai_stub: StubFactory) -> None:
    call = Reply(tool_calls=(("echo", {"text": "a"}),))
    stub = openai_stub("No more actions.", call, "No more actions.", "Done.", "No more actions.", "Again.")
    note = HumanMessage("A note.")
    plan = LoopPlan(run_agentic_loop=True, keep_messages=[note], request_patch=RequestPatch(messages=[note]))
    async with stub.chat_model() as model:
        config = LoopConfig(tool_calling="native", finalize="compose")
        graph = create_graph_agent(
            model, tools=[echo], hooks=[FixedPlanHook(plan)], config=config, checkpointer=InMemorySaver()
        )
        session = Session(graph, "s1")

        answers = [(await session.run(text)).answer for text in ("go", "more")]

    conversations = [
        [message["content"] or "call" for message in body["messages"] if message["role"] != "system"]
        for body in stub.bodies
    ]
    joined = "go\n\nA note."
    assert (answers, [talk[:3] for talk in conversations]) == (
        ["Done.", "Again."],
        [
            ["go"],
            ["A note."],
            [joined, "call", "a"],
            [joined, "call", "a"],
            ["go", "call", "a"],
            ["go", "call", "a"],
        ],
    )


@given(st.lists(st.lists(st.text(max_size=3), max_size=3), min_size=1, max_size=6))
def test_kept_messages_keep_their_position(conversation: list[list[str]]) -> None:
    """Each list is what the history got at one time; a note is kept after each."""
    history: list[AnyMessage] = []
    carried: list[RequestOnlyMessages] = []
    expected: list[AnyMessage] = []
    for number, texts in enumerate(conversation):
        new, note = [HumanMessage(text) for text in texts], HumanMessage(f"note {number}")
        history += new
        carried.append({"at": len(history), "messages": [note]})
        expected += [*new, note]

    assert with_carried(history, carried) == expected


def test_a_patch_makes_another_request() -> None:
    request = HookRequest(
        model="m",
        messages=[HumanMessage("go")],
        tools=[],
        max_tokens=5,
        optional_params={"stop": ["a"]},
        kwargs={},
        settings=LoopConfig(),
        session_id="s1",
        step=1,
    )

    other = RequestPatch(model="n", optional_params={"seed": 1}).apply(request)

    assert (
        (request.model, request.optional_params),
        (other.model, other.optional_params, other.messages, other.max_tokens, other.step),
    ) == (("m", {"stop": ["a"]}), ("n", {"stop": ["a"], "seed": 1}, request.messages, 5, 1))


async def test_the_same_message_may_override_many_replies() -> None:
    hook = FixedPlanHook(LoopPlan(response_override=AIMessage("No.")), times=2)
    graph = create_graph_agent(
        ScriptedChatModel([ECHO_A, ECHO_B]), tools=[echo], hooks=[hook], checkpointer=InMemorySaver()
    )
    session = Session(graph, "s1")

    await session.run("one")
    await session.run("two")

    state = await graph.aget_state({"configurable": {"thread_id": "s1"}})
    messages = [(message.type, message.text) for message in state.values["messages"]]
    assert messages == [("human", "one"), ("ai", "No."), ("human", "two"), ("ai", "No.")]


async def test_an_override_may_be_a_message() -> None:
    override = AIMessage("So be it.", tool_calls=[{"id": "x", "name": "echo", "args": {}, "type": "tool_call"}])

    result, _ = await run([ECHO_A], FixedPlanHook(LoopPlan(response_override=override)))

    assert result.answer == "So be it."


def test_middleware_is_not_imported_by_agents_without_any() -> None:
    script = (
        "import sys\n"
        "from graph_agent import LoopHook, ScriptedChatModel, create_graph_agent\n"
        "create_graph_agent(ScriptedChatModel(['hi']), hooks=[LoopHook()])\n"
        "sys.exit('langchain' in sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_hooks_and_middleware_work_from_blocking_entry_points() -> None:
    from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware

    hooks: list[Any] = [FixedPlanHook(RERUN), ModelRetryMiddleware(), ToolRetryMiddleware()]
    script = [ECHO_A, ECHO_B, "No more actions.", "Done."]
    graph = create_graph_agent(ScriptedChatModel(script), tools=[echo], hooks=hooks)

    assert [m.text for m in graph.invoke(says("go"))["messages"]] == ["go", "", "b", "Done."]
