"""Parsing a plan from any model reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call
from pydantic import BaseModel

from graph_agent.models.wire.parsing.plans import read_plan
from graph_agent.waves import PlanError, PlanningResult
from tests.support.wave_helpers import plan, use

PLAN_TOOL = "make_plan"

A = use("a", "echo", text="x")
PLAN = {"status": "done", "tools": [A], "action": "look", "reasoning": "why", "slots": {"n": 1}}
TEXT = json.dumps(PLAN)
READ: tuple[Any, ...] = ("done", [("a", "echo", {"text": "x"}, [])], "look", "why", {"n": 1})


def reply_of(text: str = "", *calls: tuple[str, str, dict[str, Any]]) -> AIMessage:
    return AIMessage(text, tool_calls=[tool_call(id=id_, name=name, args=args) for id_, name, args in calls])


def read(reply: AIMessage, schema: type[PlanningResult] = PlanningResult) -> tuple[Any, ...]:
    """A plan's fields: status, calls, action, reasoning, slots."""
    found = read_plan(reply, schema)
    calls = [(call.id, call.tool, call.args, call.needs) for call in found.tools]
    return found.status, calls, found.action, found.reasoning, found.slots


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(reply_of(TEXT), id="json"),
        pytest.param(reply_of(f"\n  {TEXT}\n"), id="json-in-space"),
        pytest.param(reply_of(json.dumps(PLAN, indent=2)), id="json-indented"),
        pytest.param(reply_of(f"```json\n{TEXT}\n```"), id="fenced"),
        pytest.param(reply_of(f"Here is my plan:\n```\n{TEXT}\n```\nThen I use ${{a.text}}."), id="fenced-in-prose"),
        pytest.param(reply_of(f"My plan: {TEXT} That is {{all}}."), id="json-in-prose"),
        pytest.param(reply_of(f'First I thought {{"a": 1}}, but now: {TEXT}'), id="json-after-json"),
        pytest.param(reply_of(f'<think>I could {{"status": "done"}} at once.</think>{TEXT}'), id="think"),
        pytest.param(reply_of(f"<think>{plan(use('z', 'echo'))}</think>\n{TEXT}"), id="plan-in-think"),
        pytest.param(reply_of(f'Or {{"status": maybe}}?</think>{TEXT}'), id="think-without-its-opening"),
        pytest.param(reply_of(f"{TEXT[:-1]},}}"), id="trailing-comma"),
        pytest.param(reply_of(TEXT[:-1]), id="last-brace-missing"),
        pytest.param(reply_of("", ("1", PLAN_TOOL, PLAN)), id="plan-tool"),
        pytest.param(reply_of("I plan.", ("1", PLAN_TOOL, PLAN)), id="plan-tool-with-prose"),
        pytest.param(reply_of("", ("0", "echo", {}), ("1", PLAN_TOOL, PLAN)), id="plan-tool-with-a-call"),
        pytest.param(AIMessage([{"type": "text", "text": TEXT}]), id="content-blocks"),
    ],
)
def test_a_plan_in_any_wrapping(reply: AIMessage) -> None:
    assert read(reply) == READ


@pytest.mark.parametrize(
    "text",
    [
        "No more actions.",
        "",
        "<think>Nothing to do.</think>",
        'The result was {"rooms": 3}.',
        "Use {braces} and [brackets].",
        "{" * 2000,
        "[" * 2000 + "{" * 2000,
        '{"rooms": [1, 2',
    ],
)
def test_prose_is_a_plan_that_is_done(text: str) -> None:
    found = read_plan(reply_of(text), PlanningResult)

    assert (found.status, found.tools, found.slots) == ("done", [], {})


def test_calls_of_the_tools_themselves_are_a_wave() -> None:
    assert read(reply_of("Look.", ("a", "echo", {"text": "x"}), ("b", "add", {"a": 1}))) == (
        "continue",
        [("a", "echo", {"text": "x"}, []), ("b", "add", {"a": 1}, [])],
        "",
        "Look.",
        {},
    )


@pytest.mark.parametrize("ids", [("", ""), ("same", "same"), ("functions.echo:0", "x" * 65), ("call|fc", "ü")], ids=str)
def test_a_providers_ids_that_cannot_be_used_are_made_new(ids: tuple[str, str]) -> None:
    (_, calls, *_) = read(reply_of("", *((id_, "echo", {"text": id_}) for id_ in ids)))

    kept = {call[0] for call in calls}
    assert (len(kept), [call[2]["text"] for call in calls], kept - {"same"} == kept - set(ids)) == (2, list(ids), True)


def test_the_tool_calls_envelope_is_a_wave() -> None:
    envelope = {"tool_calls": [{"id": "a", "name": "echo", "arguments": {"text": "x"}}]}

    assert read(reply_of(f"Look.\n```json\n{json.dumps(envelope)}\n```"))[:2] == (
        "continue",
        [("a", "echo", {"text": "x"}, [])],
    )


@pytest.mark.parametrize(
    ("given_plan", "faults"),
    [
        ({"tools": [A]}, ["The plan: the field 'status' is missing."]),
        ({"status": "finished"}, ["The plan: status='finished': Input should be 'continue' or 'done'."]),
        ({"status": "done", "tools": A}, [f"The plan: tools={A!r}: Input should be a valid list."]),
        (
            {"status": "done", "tools": [{"id": 1, "args": []}, "echo"]},
            [
                "The plan: tools.0.id=1: Input should be a valid string.",
                "The plan: the field 'tools.0.tool' is missing.",
                "The plan: tools.0.args=[]: Input should be a valid dictionary.",
                "The plan: tools.1='echo': Input should be a valid dictionary or instance of WaveCall.",
            ],
        ),
        (
            {"status": "done", "tools": [{**A, "needs": "b"}]},
            ["The plan: tools.0.needs='b': Input should be a valid list. Write it as a list: ['b']."],
        ),
        ({"status": "done", "action": 3}, ["The plan: action=3: Input should be a valid string."]),
    ],
    ids=["no-status", "status", "tools", "calls", "needs", "action"],
)
@pytest.mark.parametrize("way", ["text", "tool"])
def test_every_fault_of_a_plan_is_listed(given_plan: dict[str, Any], faults: list[str], way: str) -> None:
    reply = reply_of(json.dumps(given_plan)) if way == "text" else reply_of("", ("1", PLAN_TOOL, given_plan))

    with pytest.raises(PlanError) as refused:
        read_plan(reply, PlanningResult)

    assert str(refused.value).splitlines() == [*faults, "Send the whole plan again."]


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(
            AIMessage("", invalid_tool_calls=[invalid_tool_call(id="1", name=PLAN_TOOL, args="{")]), id="plan"
        ),
        pytest.param(
            AIMessage(
                "",
                tool_calls=[tool_call(id="a", name="echo", args={"text": "x"})],
                invalid_tool_calls=[invalid_tool_call(id="b", name="echo", args="{")],
            ),
            id="one-of-two-calls",
        ),
        pytest.param(reply_of(TEXT[:11]), id="cut-short"),
        pytest.param(
            reply_of('{"status": "done", "tools": [{"id": "a", "args": {"x": "' + "x" * 1_000_000), id="long-cut"
        ),
        pytest.param(reply_of('{"status": "done", "tools": ' + "[" * 100_000), id="nested-and-cut"),
        pytest.param(
            reply_of('{"status": "done", "tools": ' + "[" * 5000),
            id="nested-a-little-and-cut",
        ),
        pytest.param(reply_of('{"status": "done", "slots": ' + "[" * 5000 + "]" * 5000 + "}"), id="nested"),
        pytest.param(reply_of('{"status": "done", "slots": ' + "[" * 700 + "]" * 700 + "}"), id="nested-less"),
    ],
)
def test_an_unreadable_plan_is_returned_to_the_model(reply: AIMessage) -> None:
    with pytest.raises(PlanError, match="Send") as refused:
        read_plan(reply, PlanningResult)

    assert len(str(refused.value)) < 5000


@pytest.mark.parametrize(
    "given_plan",
    [
        {"status": "x" * 100_000},
        {"status": "done", "tools": ["y" * 1000] * 1000},
        {"status": "done", "action": [0] * 10_000},
    ],
    ids=["long", "many", "wide"],
)
def test_the_fault_list_of_a_huge_plan_is_shortened(given_plan: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as refused:
        read_plan(reply_of(json.dumps(given_plan)), PlanningResult)

    assert len(str(refused.value)) < 5000


def test_a_megabyte_of_arguments_is_read() -> None:
    text = "x" * 1_000_000

    assert read(reply_of(plan(use("a", "echo", text=text))))[1] == [("a", "echo", {"text": text}, [])]


def test_unstorable_plan_values_are_converted() -> None:
    reply = reply_of(plan(use("a", "echo", **{"te\ud800xt": "a\x00b\udfff"})))

    assert read(reply)[1] == [("a", "echo", {"te\ufffdxt": "a\ufffdb\ufffd"}, [])]


def test_unstorable_native_call_values_are_converted() -> None:
    assert read(reply_of("", ("a", "echo", {"te\x00xt": "a\ud800"})))[1] == [
        ("a", "echo", {"te\ufffdxt": "a\ufffd"}, [])
    ]


class Stay(BaseModel):
    nights: int


class StayPlan(PlanningResult):
    slots: Stay  # pyright: ignore[reportGeneralTypeIssues] # demanding what the base leaves open is the point


def test_a_users_own_slots() -> None:
    found = read_plan(reply_of(plan(A, slots={"nights": 2})), StayPlan)

    assert (type(found), found.slots) == (StayPlan, Stay(nights=2))


@pytest.mark.parametrize(
    ("slots", "fault"),
    [
        ({}, "The plan: the field 'slots.nights' is missing."),
        ({"nights": "two"}, "The plan: slots.nights='two': Input should be a valid integer"),
        (None, "The plan: slots=None: Input should be a valid dictionary or instance of Stay."),
    ],
)
def test_slots_that_do_not_fit_are_a_fault(slots: Any, fault: str) -> None:
    with pytest.raises(PlanError) as refused:
        read_plan(reply_of(plan(A, slots=slots)), StayPlan)

    assert str(refused.value).startswith(fault)


@pytest.mark.parametrize(
    "reply", [reply_of("No more actions."), reply_of("", ("a", "echo", {"text": "x"}))], ids=["prose", "calls"]
)
def test_a_reply_without_a_plan_needs_no_slots(reply: AIMessage) -> None:
    assert read_plan(reply, StayPlan).reasoning in ("No more actions.", "")


@given(st.text(max_size=300) | st.text('{}[]":,` \n<think>/status tools donecontinue', max_size=300))
def test_any_text_is_a_plan_or_a_planning_error(text: str) -> None:
    try:
        found = read_plan(reply_of(text), PlanningResult)
    except PlanError:
        return
    assert isinstance(found, PlanningResult)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcde", max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), JSON, max_size=4),
    st.sampled_from(["", "So: ", "<think>{</think>"]),
)
def test_a_plans_arguments_come_through_whole(arguments: dict[str, Any], before: str) -> None:
    call = {"id": "a", "tool": "echo", "args": arguments}

    assert read(reply_of(before + plan(call)))[1] == [("a", "echo", arguments, [])]


@pytest.mark.parametrize(
    "metadata", [{"finish_reason": "length"}, {"stop_reason": "max_tokens"}, {"finish_reason": "error"}]
)
def test_a_plan_that_was_cut_off_is_not_carried_out(metadata: dict[str, Any]) -> None:
    reply = AIMessage('{"status": "done", "tools": []}', response_metadata=metadata)

    with pytest.raises(PlanError, match="cut off"):
        read_plan(reply, PlanningResult)
