"""The loop: plans, waves, limits, answers and events."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, get_args

import pytest
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError

from graph_agent import AgentContext, LoopConfig, ScriptedChatModel, Session, SessionMemory, create_graph_agent
from graph_agent.base.types import StopReason
from graph_agent.state.events import Event
from tests.support.agents import ECHO_SCRIPT, add, asks, at_step_limit, dialogue, echo, says, thread

ECHO_CALL = asks(("c", "echo", {"text": "x"}))


async def events_of(graph: Any, session_id: str = "s1") -> list[dict[str, Any]]:
    """The events of a session without what differs from run to run."""
    events: list[Event] = await SessionMemory(graph).get_session_events(session_id)
    times = {"ts", "session_id", "model_calls", "queued_s", "duration_s", "versions"}
    return [{key: value for key, value in event.items() if key not in times} for event in events]


async def test_tools_can_be_given_by_position() -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), [echo])
    state = await graph.ainvoke(says("hi"))

    assert [message.text for message in state["messages"] if isinstance(message, ToolMessage)] == ["hello"]


async def test_the_history_of_one_call() -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], checkpointer=InMemorySaver())
    await graph.ainvoke(says("hi"), thread())

    assert await events_of(graph) == [
        {"type": "user_message", "step": 0, "content": "hi", "seq": 0},
        {"type": "status", "step": 0, "from": "CREATED", "to": "RUNNING", "seq": 1},
        {
            "type": "plan",
            "step": 1,
            "status": "continue",
            "action": "call echo",
            "reasoning": "",
            "calls": [{"id": "call_1", "name": "echo"}],
            "seq": 2,
        },
        {"type": "tool_call", "step": 1, "id": "call_1", "name": "echo", "arguments": {"text": "hello"}, "seq": 3},
        {
            "type": "tool_result",
            "step": 1,
            "id": "call_1",
            "name": "echo",
            "status": "success",
            "content": "hello",
            "truncated": False,
            "seq": 4,
        },
        {
            "type": "plan",
            "step": 2,
            "status": "done",
            "action": "answer",
            "reasoning": "No more actions.",
            "calls": [],
            "seq": 5,
        },
        {"type": "agent_response", "step": 2, "content": "The echo returned: hello", "seq": 6},
        {"type": "status", "step": 2, "from": "RUNNING", "to": "COMPLETED", "seq": 7},
    ]


async def test_the_closing_remark_of_a_plan_is_no_message() -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo])

    result = await graph.ainvoke(says("hi"))

    assert (dialogue(result["messages"]), result["status"], result["stop_reason"], "events" in result) == (
        [("human", "hi"), ("ai", ""), ("tool", "hello"), ("ai", "The echo returned: hello")],
        "COMPLETED",
        "completed",
        False,
    )


async def test_an_agent_without_tools_answers_at_once() -> None:
    model = ScriptedChatModel(["Hello! How can I help you?"])

    result = await create_graph_agent(model).ainvoke(says("hi"))

    model.assert_spent()
    assert dialogue(result["messages"]) == [("human", "hi"), ("ai", "Hello! How can I help you?")]


async def test_both_phases_send_the_same_request_but_for_its_end() -> None:
    model = ScriptedChatModel(ECHO_SCRIPT)
    await create_graph_agent(model, tools=[echo], system_prompt="Be brief.").ainvoke(says("hi"))

    plan, answer = model.requests[1], model.requests[2]

    assert (plan.messages == answer.messages[:-1], plan.tools == answer.tools, answer.messages[-1].text) == (
        True,
        True,
        "Now provide your final response to the user, from what you know and the results above. Call no tools.",
    )


async def test_the_assembled_request() -> None:
    model = ScriptedChatModel(ECHO_SCRIPT)
    await create_graph_agent(model, tools=[echo], system_prompt="Be brief.").ainvoke(says("hi"))

    assert [(type(m).__name__, m.text) for m in model.requests[0].messages] == [
        (
            SystemMessage.__name__,
            "Be brief.\n\n"
            "# How to work\n"
            "You work in steps. In each step, look at what you know and call the tools that bring you closer to an "
            "answer.\n"
            "Calls that do not depend on each other belong in the same step: they run in parallel.\n"
            "A tool that fails tells you why; try again differently, or go on without it.\n"
            "When you need no further tools, answer the user; or reply only `No more actions.`, and you will be asked "
            "for your final response.",
        ),
        ("HumanMessage", "hi"),
    ]


async def test_direct_mode_streams_the_plans_own_text_as_the_answer() -> None:
    model = ScriptedChatModel([ECHO_CALL, "It says x."])
    graph = create_graph_agent(model, tools=[echo], config=LoopConfig(finalize="direct"), checkpointer=InMemorySaver())

    chunks = graph.astream(says("hi"), thread(), stream_mode="messages")
    streamed = [chunk.text async for chunk, _ in chunks if chunk.type != "tool"]

    state = await graph.aget_state(thread())
    model.assert_spent()
    assert ("".join(streamed), dialogue(state.values["messages"])) == (
        "It says x.",
        [("human", "hi"), ("ai", ""), ("tool", "x"), ("ai", "It says x.")],
    )


@pytest.mark.parametrize(
    ("on_limit", "answer", "streamed"),
    [
        ("answer", at_step_limit(2, "So far: x."), at_step_limit(2, "So far: x.")),
        ("message", "Reached maximum reasoning steps (2)", "Reached maximum reasoning steps (2)"),
    ],
)
async def test_the_step_limit_ends_in_one_message(on_limit: Any, answer: str, streamed: str) -> None:
    model = ScriptedChatModel([ECHO_CALL, ECHO_CALL, "So far: x."])
    graph = create_graph_agent(
        model, tools=[echo], config=LoopConfig(max_steps=2, on_limit=on_limit), checkpointer=InMemorySaver()
    )

    chunks = graph.astream(says("hi"), thread(), stream_mode="messages")
    tokens = [chunk.text async for chunk, _ in chunks if chunk.type != "tool"]

    state = (await graph.aget_state(thread())).values
    events = [(e["type"], e.get("reason"), e.get("limit")) for e in await events_of(graph) if e["type"] == "limit"]
    assert (
        "".join(tokens),
        state["messages"][-1].text,
        state["status"],
        state["stop_reason"],
        state["loop"]["waves"],
        events,
    ) == (streamed, answer, "ROUND_LIMIT", "step_limit", 2, [("limit", "step_limit", 2)])


async def test_the_answer_at_a_limit_is_the_same_without_a_stream() -> None:
    model = ScriptedChatModel([ECHO_CALL, "So far: x."])

    result = await create_graph_agent(model, tools=[echo], config=LoopConfig(max_steps=1)).ainvoke(says("hi"))

    assert result["messages"][-1].text == at_step_limit(1, "So far: x.")


async def test_the_turn_limit_counts_over_the_session() -> None:
    model = ScriptedChatModel([ECHO_CALL, "No more actions.", "x", "Nothing new."])
    config = LoopConfig(max_turns=2)
    graph = create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver())
    await graph.ainvoke(says("hi"), thread())

    result = await graph.ainvoke(says("again"), thread())

    assert (result["messages"][-1].text, result["status"], result["stop_reason"]) == (
        "Reached maximum model turns (2)\n\nNothing new.",
        "TURN_LIMIT",
        "turn_limit",
    )


@pytest.mark.parametrize(
    ("recursion_limit", "waves"), [(3, 0), (4, 0), (5, 1), (6, 1), (7, 2), (8, 2), (9, 3)], ids=str
)
async def test_a_nearer_recursion_limit_never_raises(recursion_limit: int, waves: int) -> None:
    model = ScriptedChatModel([ECHO_CALL], cycle=True)
    config = LoopConfig(max_steps=50, on_limit="message")
    graph = create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver())

    await graph.ainvoke(says("hi"), thread(recursion_limit=recursion_limit))

    state = await graph.aget_state(thread())
    assert (state.values["status"], state.values["loop"]["waves"], state.next) == ("ROUND_LIMIT", waves, ())


async def test_a_recursion_limit_is_reported_with_its_value_and_how_to_raise_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = LoopConfig(max_steps=50, on_limit="message")
    saver = InMemorySaver()
    graph = create_graph_agent(
        ScriptedChatModel([ECHO_CALL], cycle=True), tools=[echo], config=config, checkpointer=saver
    )

    result = await graph.ainvoke(says("hi"), thread(recursion_limit=6))

    events = await SessionMemory(graph).get_session_events("s1")
    assert (
        result["messages"][-1].text,
        result["stop_reason"],
        [(event["reason"], event["limit"]) for event in events if event["type"] == "limit"],
        [record.message for record in caplog.records],
    ) == (
        "Reached LangGraph's recursion limit (6)",
        "recursion_limit",
        [("recursion_limit", 6)],
        [
            "LangGraph's recursion limit of 6 supersteps reached without final response",
            "Raise `recursion_limit` (now 6) in the run's config to allow more steps.",
        ],
    )


@pytest.mark.parametrize(
    ("settings", "logged", "advice"),
    [
        ({"max_turns": 1}, "The session's model turn limit of 1 reached without final response", "model calls"),
        ({"deadline_s": 1e-3}, "The deadline of 0.001 s reached without final response", "time"),
        ({"max_tokens_total": 1}, "The token budget of 1 reached without final response", "tokens"),
        (
            {"max_cost": 1e-9, "prices": {"": {"input": 1, "output": 1}}},
            "The cost budget of 1e-09 reached without final response",
            "calls",
        ),
    ],
    ids=["turns", "deadline", "tokens", "cost"],
)
async def test_the_log_and_the_result_name_the_limit_that_ended_planning_and_the_fix(
    caplog: pytest.LogCaptureFixture, settings: dict[str, Any], logged: str, advice: str
) -> None:
    config = LoopConfig(on_limit="message", **settings)
    agent = create_graph_agent(
        ScriptedChatModel([ECHO_CALL], cycle=True), tools=[echo], config=config, checkpointer=InMemorySaver()
    )

    result = await Session(agent, "s1").run("hi")

    (name, value), *_ = settings.items()
    hint = f"Raise `{name}` (now {value}) in the agent's configuration to allow more {advice}."
    assert ([record.message for record in caplog.records], result.hint, "Raise" in result.answer) == (
        [logged, hint],
        hint,
        False,
    )


STOPS: dict[str, dict[str, Any]] = {
    "step_limit": {"max_steps": 1},
    "recursion_limit": {"max_steps": 50},
    "turn_limit": {"max_turns": 1},
    "token_limit": {"max_tokens_total": 1},
    "cost_limit": {"max_cost": 1e-9, "prices": {"": {"input": 1, "output": 1}}},
    "deadline": {"deadline_s": 1e-3},
    "loop": {"max_steps": 50},
    "failed": {},
}


@pytest.mark.parametrize("reason", [each for each in get_args(StopReason) if each not in ("completed", "aborted")])
async def test_every_stop_before_the_answer_has_a_hint_for_the_developer(reason: str) -> None:
    model = ScriptedChatModel(["" if reason == "failed" else ECHO_CALL], cycle=True)
    config = LoopConfig(on_limit="message", **STOPS[reason])
    graph = create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver())
    limited = graph.with_config(recursion_limit=6 if reason == "recursion_limit" else 100)

    result = await Session(limited, "s1").run("hi")

    hints = [event["hint"] for event in await events_of(graph) if "hint" in event]
    assert (result.stop_reason, bool(result.hint), hints) == (reason, True, [result.hint])


async def test_a_recursion_limit_with_no_room_for_an_answer_is_langgraphs_to_refuse() -> None:
    graph = create_graph_agent(ScriptedChatModel(["No more actions.", "hi"]), tools=[echo])

    with pytest.raises(GraphRecursionError):
        await graph.ainvoke(says("hi"), {"recursion_limit": 1})


async def test_no_more_calls_are_in_flight_than_allowed() -> None:
    running = most = 0
    all_started = asyncio.Event()

    @tool
    async def busy() -> str:
        """Count how many run at once."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            all_started.set()
        await all_started.wait()
        running -= 1
        return "ok"

    model = ScriptedChatModel([asks(*((str(i), "busy", {}) for i in range(12))), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[busy], config=LoopConfig(max_parallel_calls=3))
    await graph.ainvoke(says("go"))

    assert most == 3


async def test_a_callers_max_concurrency_lowers_the_bound() -> None:
    running = most = 0

    @tool
    async def busy() -> str:
        """Count how many run at once."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return "ok"

    model = ScriptedChatModel([asks(*((str(i), "busy", {}) for i in range(8))), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[busy], config=LoopConfig(max_parallel_calls=5))
    await graph.ainvoke(says("go"), {"max_concurrency": 2})

    assert most == 2


async def test_a_runs_context_overrides_only_what_it_sets() -> None:
    model = ScriptedChatModel([ECHO_CALL, "So far: x."])
    graph = create_graph_agent(model, tools=[echo], config=LoopConfig(max_steps=9, on_limit="message"))

    result = await graph.ainvoke(says("hi"), context=AgentContext(max_steps=1))

    assert result["messages"][-1].text == "Reached maximum reasoning steps (1)"


async def test_progress_on_the_custom_stream() -> None:
    calls = asks(("1", "echo", {"text": "x"}), ("2", "add", {"a": 1, "b": 2}))
    graph = create_graph_agent(ScriptedChatModel([calls, ECHO_CALL, "No more actions.", "Done."]), tools=[echo, add])

    progress = [part async for part in graph.astream(says("go"), stream_mode="custom")]

    assert progress == [
        {"type": "progress", "step": 1, "action": "tool_call", "target": "echo"},
        {"type": "progress", "step": 1, "action": "tool_call", "target": "add"},
        {"type": "progress", "step": 2, "action": "tool_call", "target": "echo"},
    ]


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text of each record, without figures of times and tokens."""
    figures = re.compile(r"[\d.]+(?= s\b| \+| tokens)")
    return [(record.levelname, figures.sub("…", record.message)) for record in caplog.records]


async def test_the_log_of_a_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="graph_agent")
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo])
    await graph.ainvoke(says("hi"))

    assert logged(caplog) == [
        ("INFO", "Agentic iteration 1/5"),
        ("INFO", "The model scripted took … s for the plan: … + … tokens"),
        ("INFO", "Executing 1 tool call(s)"),
        ("INFO", "The call of echo took … s: success"),
        ("INFO", "Agentic iteration 2/5"),
        ("INFO", "The model scripted took … s for the plan: … + … tokens"),
        ("INFO", "Final response received (no tool calls)"),
        ("INFO", "The model scripted took … s for the answer: … + … tokens"),
        ("INFO", "The input ended: completed"),
    ]


async def test_the_log_of_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="graph_agent")
    config = LoopConfig(max_steps=1, on_limit="message")
    await create_graph_agent(ScriptedChatModel([ECHO_CALL]), tools=[echo], config=config).ainvoke(says("hi"))

    assert logged(caplog) == [
        ("INFO", "Agentic iteration 1/1"),
        ("INFO", "The model scripted took … s for the plan: … + … tokens"),
        ("INFO", "Executing 1 tool call(s)"),
        ("INFO", "The call of echo took … s: success"),
        ("WARNING", "Max agentic iterations reached without final response"),
        ("WARNING", "Raise `max_steps` (now 1) in the agent's configuration to allow more steps."),
        ("INFO", "The input ended: step_limit"),
    ]


async def test_a_model_that_fails_ends_in_an_error_event_and_a_message_that_reports_it() -> None:
    class UnauthorizedError(Exception):
        status_code = 401

    class Failing(ScriptedChatModel):
        async def _agenerate(self, *_: Any, **__: Any) -> Any:
            raise UnauthorizedError("bad key")

    graph = create_graph_agent(Failing(responses=["never"]), tools=[echo], checkpointer=InMemorySaver())

    result = await graph.ainvoke(says("hi"), thread())

    errors = [(e["kind"], e["message"]) for e in await events_of(graph) if e["type"] == "error"]
    assert (dialogue(result["messages"]), result["status"], result["stop_reason"], [kind for kind, _ in errors]) == (
        [
            ("human", "hi"),
            (
                "ai",
                "This request failed. The model provider refused the API key (HTTP 401).",
            ),
        ],
        "FAILED",
        "failed",
        ["auth"],
    )


async def test_a_session_goes_on_after_a_failure() -> None:
    class Flaky(ScriptedChatModel):
        failed: bool = False

        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            if not self.failed:
                self.failed = True
                raise ValueError("nothing a retry would mend")
            return await super()._agenerate(*args, **kwargs)

    graph = create_graph_agent(Flaky(responses=["Hello."]), checkpointer=InMemorySaver())
    await graph.ainvoke(says("one"), thread())

    result = await graph.ainvoke(says("two"), thread())

    users = [event["content"] for event in await events_of(graph) if event["type"] == "user_message"]
    assert (dialogue(result["messages"]), result["status"], users) == (
        [
            ("human", "one"),
            (
                "ai",
                "This request failed. The model call failed.",
            ),
            ("human", "two"),
            ("ai", "Hello."),
        ],
        "COMPLETED",
        ["one", "two"],
    )


async def test_a_call_in_the_answering_phase_leaves_no_orphan() -> None:
    reply = AIMessage("Here.", tool_calls=[{"id": "z", "name": "echo", "args": {"text": "x"}}])
    graph = create_graph_agent(ScriptedChatModel(["No more actions.", reply]), tools=[echo])

    result = await graph.ainvoke(says("hi"))

    last = result["messages"][-1]
    assert (last.text, last.tool_calls) == ("Here.", [])


async def test_an_interrupt_keeps_the_siblings_result_and_resumes() -> None:
    from langgraph.types import Command, interrupt

    ran: list[str] = []

    @tool
    async def sibling() -> str:
        """Run once."""
        ran.append("sibling")
        return "ok"

    @tool
    async def ask() -> str:
        """Ask a person."""
        answer: str = interrupt("May I?")
        ran.append("ask")
        return answer

    model = ScriptedChatModel([asks(("1", "ask", {}), ("2", "sibling", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[ask, sibling], checkpointer=InMemorySaver())
    await graph.ainvoke(says("go"), thread())
    waiting = await Session(graph, "s1").status()

    result = await graph.ainvoke(Command(resume="yes"), thread())

    assert (waiting, dialogue(result["messages"]), ran) == (
        "RUNNING",
        [("human", "go"), ("ai", ""), ("tool", "yes"), ("tool", "ok"), ("ai", "Done.")],
        ["sibling", "ask"],
    )


async def test_results_follow_their_calls_in_call_order() -> None:
    calls = asks(("1", "add", {"a": 1, "b": 1}), ("2", "echo", {"text": "x"}), ("3", "add", {"a": 2, "b": 2}))
    graph = create_graph_agent(ScriptedChatModel([calls, "No more actions.", "Done."]), tools=[echo, add])

    result = await graph.ainvoke(says("go"))

    assert [(m.tool_call_id, m.text) for m in result["messages"] if isinstance(m, ToolMessage)] == [
        ("1", "2"),
        ("2", "x"),
        ("3", "4"),
    ]


async def test_missing_and_repeated_call_ids_are_made_unique() -> None:
    calls = asks(("", "echo", {"text": "a"}), ("same", "echo", {"text": "b"}), ("same", "echo", {"text": "c"}))
    graph = create_graph_agent(ScriptedChatModel([calls, "No more actions.", "Done."]), tools=[echo])

    result = await graph.ainvoke(says("go"))

    ids = [message.tool_call_id for message in result["messages"] if isinstance(message, ToolMessage)]
    assert (len(set(ids)), "same" in ids, [m.text for m in result["messages"] if isinstance(m, ToolMessage)]) == (
        3,
        True,
        ["a", "b", "c"],
    )


async def test_the_hint_at_the_step_limit_can_be_replaced_or_left_out() -> None:
    results = []
    for hint in ("", "Ask again to go on ({{ limit }})."):
        model = ScriptedChatModel([ECHO_CALL, "So far: x."])
        config, prompts = LoopConfig(max_steps=1), {"limit_hint": hint}
        graph = create_graph_agent(model, tools=[echo], config=config, prompts=prompts, checkpointer=InMemorySaver())
        results.append(await Session(graph, "s1").run("hi"))

    answer = "Reached maximum reasoning steps (1)\n\nSo far: x."
    assert [(result.answer, result.hint) for result in results] == [(answer, ""), (answer, "Ask again to go on (1).")]


async def test_other_limits_do_not_name_max_steps() -> None:
    model = ScriptedChatModel([ECHO_CALL, "So far: x."])
    graph = create_graph_agent(model, tools=[echo], config=LoopConfig(max_steps=5))

    state = await graph.ainvoke(says("hi"), thread(), context={"max_turns": 1})

    assert state["messages"][-1].text == "Reached maximum model turns (1)\n\nSo far: x."
