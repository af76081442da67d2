"""Requests and decisions as text."""

from __future__ import annotations

from typing import Any

import pytest

from graph_agent.approvals import HeldCall, approve, edit, reject, respond
from graph_agent.approvals.requests import request_for
from graph_agent.approvals.text import decisions_in_text, question_text
from graph_agent.errors import DecisionError
from tests.support.approvals import ALL

ONE: HeldCall = {"id": "c1", "name": "write", "arguments": {"path": "ä"}, "allowed_decisions": ["approve", "reject"]}
TWO: HeldCall = {
    "id": "c2",
    "name": "erase",
    "arguments": {},
    "allowed_decisions": ALL,
    "description": "Forever.",
}


@pytest.mark.parametrize(
    ("text", "decisions"),
    [
        ("approve", approve()),
        (" Yes. ", approve()),
        ("OK", approve()),
        ("reject", reject()),
        ("no", reject()),
        ("Reject: too late", reject("too late")),
        ("no, take another file\nplease", reject("take another file\nplease")),
        ("respond: 42\nor so", respond("42\nor so")),
        ('edit: {"path": "b"}', edit({"path": "b"})),
        ("1: approve\n2: reject: no", {"c1": approve(), "c2": reject("no")}),
        ("c2) yes", {"c2": approve()}),
        ('{"decisions": [{"type": "approve"}]}', [approve()]),
        ('```json\n[{"type": "approve"}]\n```', [approve()]),
        ('{"c1": {"type": "approve"}}', {"c1": approve()}),
    ],
)
async def test_a_message_is_read_as_decisions(text: str, decisions: Any) -> None:
    assert decisions_in_text(text, [ONE, TWO]) == decisions


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes, but another file",
        "approve it tomorrow",
        "What is in it?",
        "3: approve",
        "1: approve\n1: reject",
        "1: approve\nthanks",
        "{not json",
        "edit: {not json}",
        "nothing",
        "note: yes",
    ],
)
async def test_another_message_is_no_decision(text: str) -> None:
    with pytest.raises(DecisionError, match="Answer with one line for each call"):
        decisions_in_text(text, [ONE, TWO])


async def test_a_question_lists_the_calls_and_how_to_answer() -> None:
    assert question_text(request_for([ONE, TWO], "It is late.")) == (
        "2 calls wait for approval:\n"
        '1. write {"path": "ä"}\n'
        "2. erase {}\n"
        "   Forever.\n"
        "The last answer was not accepted: It is late.\n"
        'Answer with one line for each call, such as "1: approve", or with one line for all. Decisions: "approve", '
        '"reject", "reject: <reason>", "edit: {<all arguments as JSON>}", "respond: <the result>".'
    )


async def test_a_repeated_question_explains_how_to_answer_once() -> None:
    with pytest.raises(DecisionError) as refused:
        decisions_in_text("why?", [ONE])

    assert question_text(request_for([ONE], str(refused.value))) == (
        'A call waits for approval:\n1. write {"path": "ä"}\n'
        "The last answer was not accepted: 'why?' is no decision on the calls that wait. "
        'Answer with one of: "approve", "reject", "reject: <reason>".'
    )


async def test_a_question_on_one_call_names_only_its_decisions() -> None:
    assert question_text(request_for([ONE])) == (
        'A call waits for approval:\n1. write {"path": "ä"}\n'
        'Answer with one of: "approve", "reject", "reject: <reason>".'
    )
