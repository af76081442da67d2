"""Validation of the answers to an approval request."""

from __future__ import annotations

from typing import Any

import pytest

from graph_agent.approvals import HeldCall, approve, edit, reject, respond
from graph_agent.base.approvals.decisions import read_decisions
from graph_agent.base.approvals.requests import calls_of_request, request_for
from graph_agent.errors import DecisionError
from tests.support.agents import asks
from tests.support.approvals import ALL, Desk


def held(id_: str, name: str = "write", allowed: list[Any] | None = None) -> HeldCall:
    return {"id": id_, "name": name, "arguments": {"path": id_}, "allowed_decisions": allowed or ALL}


TWO = [held("a"), held("b", "erase")]


def read(answer: Any, calls: list[HeldCall] = TWO) -> list[tuple[Any, ...]]:
    return [
        (each.call["id"], each.type, each.name, each.arguments, each.message, each.by)
        for each in read_decisions(calls, answer)
    ]


async def test_a_list_decides_the_calls_in_the_order_of_the_request() -> None:
    found = read({"decisions": [approve(), edit({"path": "c"}, name="write")]})

    assert found == [
        ("a", "approve", "write", {"path": "a"}, None, "user"),
        ("b", "edit", "write", {"path": "c"}, None, "user"),
    ]


async def test_a_mapping_by_call_id_may_leave_calls_undecided() -> None:
    found = read({"decisions": {"b": reject("Keep it.")}, "decided_by": "ana"})

    assert found == [("b", "reject", "erase", {"path": "b"}, "Keep it.", "ana")]


@pytest.mark.parametrize("answer", [reject("No."), {"decisions": reject("No.")}])
async def test_one_decision_counts_for_every_call(answer: Any) -> None:
    assert read(answer) == [
        ("a", "reject", "write", {"path": "a"}, "No.", "user"),
        ("b", "reject", "erase", {"path": "b"}, "No.", "user"),
    ]


async def test_an_edit_without_a_name_keeps_the_tool() -> None:
    assert read([edit({"path": "c"})], [held("a")]) == [("a", "edit", "write", {"path": "c"}, None, "user")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"decisions": [approve()]}, r"has 1 decisions, and 2 calls wait: a \(write\), b \(erase\)"),
        ({"decisions": []}, "has 0 decisions"),
        ({"decisions": {}}, "holds no decisions"),
        ({"decisions": {"z": approve()}}, r"No call 'z' waits for a decision; known: a, b\."),
        ({"decisions": None}, "holds no decisions"),
        ("sure", "'sure' is no decision"),
        ({"decisions": "maybe"}, "'maybe' is no decision"),
        ("5", "'5' is no decision"),
        (5, "5 holds no decisions"),
        ({"a": approve()}, "holds no decisions"),
        ({"decisions": ["approve", "approve"]}, r"The decision on call 'a' \(write\) is 'approve'; write e\.g\."),
        ([{"type": "aprove"}, approve()], r"type 'aprove'; .*Did you mean 'approve'\?"),
        ([{"type": ["approve"]}, approve()], "has the type"),
        (respond("x"), "One decision 'respond' cannot count for 2 calls"),
        (edit({}), "One decision 'edit' cannot count for 2 calls"),
        ([approve(), {"type": "edit"}], "is an edit without the new call"),
        ([approve(), {"type": "edit", "edited_action": {"name": "erase"}}], "is an edit without the new call"),
        ([approve(), {"type": "edit", "edited_action": {"name": 5, "args": {}}}], "has the tool name 5"),
        ([approve(), edit({"path": float("nan")})], "has arguments that cannot be used"),
        ([approve(), {"type": "reject", "message": 5}], "has the message 5"),
        ([approve(), {"type": "respond"}], "is a response without a message"),
        ({"decisions": [approve(), approve()], "decided_by": ""}, "decided_by=''"),
        ({"decisions": [approve(), approve()], "decided_by": 5}, "decided_by=5"),
    ],
)
async def test_an_answer_that_does_not_fit_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(DecisionError, match=message):
        read(answer)


async def test_a_decision_that_the_policy_does_not_allow_is_refused() -> None:
    with pytest.raises(DecisionError, match="is 'edit', which its policy does not allow; allowed: approve, reject"):
        read([edit({"path": "c"})], [held("a", allowed=["approve", "reject"])])


async def test_a_request_has_the_shape_of_langchain() -> None:
    from langchain.agents.middleware.human_in_the_loop import HITLRequest, HITLResponse
    from pydantic import TypeAdapter

    calls: list[HeldCall] = [{**held("a"), "description": "Careful."}, held("b", allowed=["approve"])]
    request: Any = request_for(calls)
    decisions = [approve(), edit({"path": "c"}, name="write"), reject(), reject("No."), respond("ok")]

    TypeAdapter(HITLRequest).validate_python(request)
    TypeAdapter(HITLResponse).validate_python({"decisions": decisions})

    assert (request, calls_of_request(request)) == (
        {
            "action_requests": [
                {"name": "write", "args": {"path": "a"}, "description": "Careful."},
                {"name": "write", "args": {"path": "b"}},
            ],
            "review_configs": [
                {"action_name": "write", "allowed_decisions": ALL},
                {"action_name": "write", "allowed_decisions": ["approve"]},
            ],
            "call_ids": ["a", "b"],
        },
        calls,
    )


async def test_an_edit_with_a_value_that_is_not_json_is_refused_and_the_session_waits() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "Done.")
    await desk.session.run("go")

    with pytest.raises(DecisionError, match="has arguments that cannot be used: Object of type object"):
        await desk.session.resume(edit({"path": object()}))
    result = await desk.session.resume(approve())

    assert result.results == {"1": "wrote a"}
