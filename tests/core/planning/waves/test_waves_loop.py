"""Planning wave by wave: when another plan is requested, its prompt, and the result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from graph_agent import AgentContext, RunResult, ScriptedChatModel, SessionStatus
from graph_agent.waves import PlanningResult
from tests.support.agents import add, echo, kinds, says, thread
from tests.support.wave_helpers import DONE, answers, fail, find, of_type, plan, plan_requests, results_of, use, waves

A = use("a", "echo", text="x")


@pytest.mark.parametrize(
    ("script", "plan_calls", "iterations"),
    [
        pytest.param([plan(A), plan(use("b", "echo", text="y")), DONE, "Answer."], 3, 2, id="continue plans again"),
        pytest.param([plan(A), plan(use("b", "echo", text="y"), status="done"), "Answer."], 2, 2, id="done runs last"),
        pytest.param([plan(A, status="done"), "Answer."], 1, 1, id="done at once"),
        pytest.param([DONE, "Answer."], 1, 0, id="done without calls"),
        pytest.param(["No more actions.", "Answer."], 1, 0, id="prose"),
        pytest.param([plan(), DONE, "Answer."], 2, 0, id="continue without calls"),
        pytest.param([plan(), plan(), "Answer."], 2, 0, id="continue without calls twice"),
        pytest.param([plan(), plan(A), DONE, "Answer."], 3, 1, id="continue without calls mended"),
    ],
)
async def test_each_wave_leads_to_another_plan_until_done(script: list[str], plan_calls: int, iterations: int) -> None:
    model = ScriptedChatModel(script)

    result = await waves(model, tools=[echo]).run("go")

    model.assert_spent()
    assert (len(plan_requests(model)), len(model.requests), result.iterations, result.answer, result.status) == (
        plan_calls,
        len(script),
        iterations,
        "Answer.",
        SessionStatus.COMPLETED,
    )


async def test_continue_without_calls_is_explained_to_the_model() -> None:
    model = ScriptedChatModel([plan(reasoning="Hm."), DONE, "Answer."])
    await waves(model, tools=[echo]).run("go")

    assert [message.text for message in model.requests[1].messages[2:]] == [
        plan(reasoning="Hm."),
        'The plan has the status "continue" and no calls. Plan the calls that are needed, or use "done".',
    ]


async def test_results_are_rendered_by_call_id() -> None:
    first = plan(A, use("sum", "add", a=1, b=2), use("bad", "fail"), reasoning="Look.")
    model = ScriptedChatModel([first, plan(use("f", "find", what="room")), DONE, "Answer."])
    await waves(model, tools=[echo, add, fail, find]).run("go")

    asked = plan_requests(model)

    room = {"what": "room", "hits": [{"id": 7, "name": "room one"}, {"id": 8, "name": "room two"}]}
    wave = {"a": "x", "sum": 3, "bad": {"error": "fail failed: ValueError: no such thing"}}
    calls = json.loads(asked[1][2].text)
    assert ([results_of(messages) for messages in asked], calls) == (
        [[], [wave], [wave, {"f": room}]],
        {
            "status": "continue",
            "tools": [
                {"id": "a", "tool": "echo", "args": {"text": "x"}},
                {"id": "sum", "tool": "add", "args": {"a": 1, "b": 2}},
                {"id": "bad", "tool": "fail", "args": {}},
            ],
            "reasoning": "Look.",
        },
    )


async def test_a_failed_call_is_planned_again_with_other_arguments() -> None:
    script = [plan(use("sum", "add", a="x", b=2)), plan(use("sum", "add", a=1, b=2), status="done"), "It is 3."]

    session = waves(script, tools=[add])
    result = await session.run("go")

    (first, second) = of_type(await session.events(), "tool_result", "id", "status", "content")
    assert (first[:2], second, result.results) == (("sum", "invalid"), ("sum#2", "success", "3"), {"sum": 3})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param(
            '{"status": "maybe", "tools": [{"tool": "echo"}]}',
            "The plan: status='maybe': Input should be 'continue' or 'done'.\n"
            "The plan: the field 'tools.0.id' is missing.\n"
            "Send the whole plan again.",
            id="schema",
        ),
        pytest.param(
            plan(use("a", "echo", "b", text="x")),
            "The plan cannot be carried out:\nCall 'a' needs 'b', no call of this plan or of an earlier one.",
            id="unknown id",
        ),
        pytest.param(plan(A, A), "The plan cannot be carried out:\nThe id 'a' is used twice.", id="doubled id"),
        pytest.param(
            plan(use("a", "echo", "b", text="x"), use("b", "echo", text="${a}")),
            "The plan cannot be carried out:\nThese calls need each other in a circle: a → b → a.",
            id="circle",
        ),
        pytest.param(
            plan(*(use(f"c{i}", "echo", text="x") for i in range(3))),
            "The plan has 3 calls; at most 2 are allowed in one. Plan fewer.",
            id="too many",
        ),
    ],
)
async def test_a_plan_that_cannot_be_carried_out_is_sent_back_once(wrong: str, message: str) -> None:
    model = ScriptedChatModel([wrong, plan(A, status="done"), "Answer."])

    result = await waves(model, tools=[echo], settings={"max_calls_per_wave": 2}).run("go")

    model.assert_spent()
    sent = [(m.type, m.text) for m in model.requests[1].messages[2:]]
    assert (sent, result.results, result.usage["model_calls"]) == (
        [("ai", wrong), ("human", message)],
        {"a": "x"},
        3,
    )


async def test_a_plan_that_stays_wrong_ends_in_a_planning_error() -> None:
    model = ScriptedChatModel(['{"status": "maybe"}', plan(A, A)])

    session = waves(model, tools=[echo])
    result = await session.run("go")

    model.assert_spent()
    events = await session.events()
    text = "The plan cannot be carried out:\nThe id 'a' is used twice."
    assert (kinds(events), of_type(events, "error", "kind", "message"), result.status, result.error) == (
        ["user_message", "status", "error", "agent_response", "status"],
        [("planning", text)],
        SessionStatus.FAILED,
        text,
    )
    assert (result.answer, result.stop_reason, result.usage["model_calls"]) == (
        f"This request failed. {text}",
        "failed",
        2,
    )


async def test_a_session_goes_on_after_a_planning_error() -> None:
    session = waves([plan(A, A), plan(A, A), plan(A, status="done"), "Answer."], tools=[echo])
    await session.run("one")

    result = await session.run("two")

    assert (result.answer, result.results) == ("Answer.", {"a": "x"})


async def test_an_id_used_in_a_later_wave_is_that_of_the_newest_call() -> None:
    second = plan(use("a", "find", what="bed"), use("b", "echo", "a", text="${a.hits[1].name}"), status="done")
    session = waves([plan(A), second, "Answer."], tools=[echo, find])

    result = await session.run("go")

    (_, (later,)) = of_type(await session.events(), "plan", "calls")
    messages = (await session.graph.aget_state(thread())).values["messages"]
    assert (later, result.results["b"], [len(found) for _, found in answers(messages)]) == (
        [
            {"id": "a#2", "plan_id": "a", "name": "find"},
            {"id": "b", "plan_id": "b", "name": "echo", "needs": ["a"]},
        ],
        "bed two",
        [1, 1, 1],
    )


async def test_the_result_of_a_run() -> None:
    wave = plan(A, use("bad", "fail"), action="look", reasoning="One must look.", slots={"when": "May"})
    last = plan(use("c", "echo", text="z"), status="done", action="look again", reasoning="And again.")
    session = waves([wave, last, "Answer."], tools=[echo, fail])

    result = await session.run("go")

    events = await session.events()
    fields = {name: getattr(result, name) for name in RunResult.__slots__ if name not in ("calls", "events")}
    assert (of_type(events, "plan", "status", "action", "slots", "planner"), {**fields, "usage": None}) == (
        [("continue", "look", {"when": "May"}, "wave"), ("done", "look again", {}, "wave")],
        {
            "answer": "Answer.",
            "status": "COMPLETED",
            "stop_reason": "completed",
            "action": "look again",
            "reasoning": "And again.",
            "results": {"a": "x", "bad": {"error": "fail failed: ValueError: no such thing"}, "c": "z"},
            "iterations": 2,
            "usage": None,
            "pending": [],
            "interrupts": [],
            "structured_response": None,
            "cost": None,
            "error": "",
            "error_kind": "",
            "hint": "",
            "cause": None,
            "truncated": None,
            "state": {},
            "follow_ups": (),
        },
    )


async def test_nothing_of_a_plan_reaches_the_message_stream() -> None:
    session = waves([plan(A, reasoning="Secret."), DONE, "The answer."], tools=[echo])

    stream: Any = session.graph.astream(says("go"), thread(), stream_mode="messages")
    tokens = [chunk.text async for chunk, _ in stream if chunk.type != "tool"]

    assert "".join(tokens) == "The answer."


class Stay(BaseModel):
    nights: int


class StayPlan(PlanningResult):
    slots: Stay  # pyright: ignore[reportGeneralTypeIssues] # demanding what the base leaves open is the point


async def test_a_users_own_slots_are_checked_and_kept() -> None:
    wrong, right = plan(A, slots={"nights": "two"}), plan(A, slots={"nights": 2}, status="done")
    model = ScriptedChatModel([wrong, right, "Answer."])
    session = waves(model, tools=[echo], plan_schema=StayPlan)

    await session.run("go")

    sent = model.requests[1].messages[-1].text
    schema = model.requests[0].tools[0]["function"]["parameters"]["$defs"]["Stay"]["properties"]
    assert (sent.splitlines()[0], schema["nights"]["type"], of_type(await session.events(), "plan", "slots")) == (
        "The plan: slots.nights='two': Input should be a valid integer, unable to parse string as an integer.",
        "integer",
        [({"nights": 2},)],
    )


async def test_prose_needs_no_slots() -> None:
    result = await waves(["No more actions.", "Answer."], tools=[echo], plan_schema=StayPlan).run("go")

    assert (result.answer, result.error) == ("Answer.", "")


async def test_native_calls_are_a_wave_too() -> None:
    native = AIMessage("Look.", tool_calls=[{"id": "functions.echo:0", "name": "echo", "args": {"text": "x"}}])

    result = await waves([native, DONE, "Answer."], tools=[echo]).run("go")

    assert (list(result.results.values()), result.answer) == (["x"], "Answer.")


async def test_an_unknown_tool_is_an_error_of_its_call_alone() -> None:
    result = await waves([plan(use("s", "serch"), A, status="done"), "Answer."], tools=[echo]).run("go")

    assert result.results == {"s": {"error": "Unknown tool 'serch'; known: echo."}, "a": "x"}


async def test_a_runs_context_chooses_the_mode_and_the_cap() -> None:
    model = ScriptedChatModel([plan(A, status="done"), "Answer."])
    session = waves(model, tools=[echo])

    await session.run("go", context=AgentContext(max_calls_per_wave=3))

    assert "A plan has at most 3 calls." in model.requests[0].messages[0].text


async def test_the_plan_tool_is_offered_with_its_schema() -> None:
    model = ScriptedChatModel([DONE, "Answer."])
    await waves(model, tools=[echo]).run("go")

    asked = model.requests[0]
    assert (asked.tool_names, asked.tool_choice, asked.kwargs, model.requests[1].tools) == (
        ["make_plan"],
        "make_plan",
        {"temperature": 0},
        [],
    )


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (use("b", "echo", text="${a}"), "x ${a}"),
        (use("b", "echo", text="<${a}>"), "<x ${a}>"),
        (use("b", "echo", "a", text="y"), "y"),
        (use("b", "echo", text="${a.field}"), "Not run: ${a.field}: a has no 'field'; it is the str x ${a}."),
        (use("b", "echo", text="${f}"), "Not run: it needs 'f', which failed or was not run."),
    ],
    ids=["whole", "within text", "needs alone", "wrong path", "failed"],
)
async def test_a_plan_may_name_a_call_of_an_earlier_wave(call: dict[str, Any], result: str) -> None:
    first = plan(use("a", "echo", text="x $${a}"), use("f", "fail"))
    second = plan(call, use("c", "echo", text="${b}"))
    model = ScriptedChatModel([first, second, DONE, "Answer."])

    session = waves(model, tools=[echo, fail])
    outcome = await session.run("go")

    model.assert_spent()
    failed = result.startswith("Not run")
    skipped = {"error": "Not run: it needs 'b', which failed or was not run."}
    assert {id_: outcome.results[id_] for id_ in "bc"} == {
        "b": {"error": result} if failed else result,
        "c": skipped if failed else result,
    }


async def test_a_call_of_an_earlier_input_cannot_be_named() -> None:
    model = ScriptedChatModel([plan(A, status="done"), "One.", plan(use("b", "echo", text="${a}")), DONE, "Two."])
    session = waves(model, tools=[echo])
    await session.run("go")

    await session.run("again")

    assert model.requests[3].messages[-1].text == (
        "The plan cannot be carried out:\nCall 'b' needs 'a', a call of an earlier input. A reference is to a call of "
        "the same input: make the call again, or write the value itself."
    )
