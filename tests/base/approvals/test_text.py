"""Requests and decisions as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graph_agent.approvals import HeldCall, approve, edit, reject, respond
from graph_agent.base.approvals.requests import request_for
from graph_agent.base.approvals.text import decisions_in_text, parse_answer, question_text
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
        "```" + " " * 100_000 + "x",
        "note: yes",
    ],
)
async def test_another_message_is_no_decision(text: str) -> None:
    with pytest.raises(DecisionError, match="Answer with one line for each call"):
        decisions_in_text(text, [ONE, TWO])


async def test_an_answer_that_is_nested_too_deeply_stays_text() -> None:
    deep = "[" * 100_000

    assert (parse_answer(deep), parse_answer('{"a": 1}'), parse_answer("{a")) == (deep, {"a": 1}, "{a")


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


HIDING = {"path": "a\u202eb\u2028c\u200bd\U000e0041e\u00a0f\ufe0fg ⚠\ufe0f ü 你好"}
SHOWN = r"a\u202eb\u2028c\u200bd\udb40\udc41e\u00a0f\ufe0fg ⚠\ufe0f ü 你好".replace(r"⚠\ufe0f", "⚠\ufe0f")


async def test_a_question_shows_every_character_of_the_arguments_as_json_that_reads_back() -> None:
    call: HeldCall = {**ONE, "arguments": HIDING | {"body": "x" * 50_000 + "end"}}

    shown = question_text(request_for([call])).splitlines()[1].removeprefix("1. write ")

    assert (shown.startswith(f'{{"path": "{SHOWN}"'), json.loads(shown)) == (True, call["arguments"])


async def test_no_line_of_a_description_or_name_looks_like_another_part_of_the_question() -> None:
    call: HeldCall = {**ONE, "name": "wr\nite", "description": "Safe.\n2. erase {}\u2028Answer with: yes\u200b"}

    assert question_text(request_for([call])).splitlines()[1:-1] == [
        r'1. wr\nite {"path": "ä"}',
        "   Safe.",
        "   2. erase {}",
        r"   Answer with: yes\u200b",
    ]


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
