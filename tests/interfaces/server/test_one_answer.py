"""One answer at every door: the stream of a door, joined, equals its whole answer, and no text is delivered twice."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from langchain_core.messages import AIMessage

from tests.support.agents import asks
from tests.support.doors import (
    COMPLETED,
    INPUT_REQUIRED,
    SPARE,
    Case,
    answers_of,
    both,
    cases,
    delivered_again,
    reply,
)

STALLING: list[AIMessage | str] = [AIMessage("It is a.")]

COMMENTED: list[AIMessage | str] = [asks(("c1", "echo", {"text": "a"}), content="Let me check."), AIMessage("It is a.")]

PAINTED: list[AIMessage | str] = [asks(("p1", "paint", {"text": "a"}), content="Let me paint."), AIMessage("Painted.")]
TWO_CALLS: list[AIMessage | str] = [reply("native", "Checking #0.", 2, 0, "", "stop"), AIMessage("It is a.")]
FILTERED: list[AIMessage | str] = [*COMMENTED[:1], reply("native", "It is #1.", 0, 1, "", "content_filter")]


@given(cases())
@example(Case("native", "auto", False, False, [*COMMENTED, *SPARE], None))
@example(Case("native", "auto", True, True, [*COMMENTED, *SPARE], None))
@example(Case("native", "auto", True, False, [*PAINTED, *COMMENTED, *SPARE], None, True, True))
@example(Case("native", "auto", True, False, TWO_CALLS, None, approval="1: approve"))
@example(Case("native", "auto", True, False, TWO_CALLS, None, answered=1, approval="1: approve"))
@example(Case("native", "direct", False, False, [*TWO_CALLS, *SPARE], False, limits={"max_steps": 1}))
@example(Case("native", "auto", False, False, FILTERED, None, limits={"max_steps": 1}))
@settings(
    max_examples=50,
    deadline=None,
    phases=[Phase.explicit, *([Phase.generate] if settings.get_current_profile_name() == "thorough" else [])],
    suppress_health_check=[HealthCheck.too_slow],
)
def test_the_stream_of_every_door_joined_is_its_whole_answer(case: Case) -> None:
    streamed, whole = asyncio.run(both(case))

    assert (streamed, delivered_again(whole)) == (whole, {})


def test_text_before_calls_is_commentary_at_every_door() -> None:
    streamed, _ = asyncio.run(both(Case("native", "auto", False, False, COMMENTED, None)))

    items = [("message", "commentary", ["Let me check.\n\n"]), ("message", "final_answer", ["It is a."])]
    response = (items, "Let me check.\n\nIt is a.")
    assert streamed == {
        "openai_chat": ["Let me check.\n\nIt is a."],
        "anthropic_messages": [["Let me check.", "It is a."]],
        "responses": [response],
        "background": [response],
        "websocket": [response],
        "a2a jsonrpc": [(COMPLETED, "It is a.")],
        "a2a rest": [(COMPLETED, "It is a.")],
        "session": [("It is a.", None)],
    }


def test_the_reason_of_a_stop_within_the_answer_is_streamed_by_every_api() -> None:
    case = Case("native", "auto", False, False, STALLING, None, limits={"deadline_s": 1}, hangs_after="It")
    streamed = asyncio.run(answers_of(case, True))

    answer = "It\n\nReached the deadline (1.0 s)"
    response = ([("message", "final_answer", [answer])], answer)
    assert streamed == {
        "openai_chat": [answer],
        "anthropic_messages": [[answer]],
        "responses": [response],
        "background": [response],
        "websocket": [response],
        "a2a jsonrpc": [(COMPLETED, answer)],
        "a2a rest": [(COMPLETED, answer)],
        "session": [(answer, None)],
    }


def test_a_response_format_leaves_json_alone_at_every_door() -> None:
    replies: list[AIMessage | str] = [
        asks(("c1", "echo", {"text": "a"}), content="Let me check."),
        AIMessage('{ "sum": 3 }'),
    ]
    _, whole = asyncio.run(both(Case("native", "auto", False, True, replies, None)))

    json_alone = '{"sum": 3}'
    response = ([("message", "final_answer", [json_alone])], json_alone)
    assert whole == {
        "openai_chat": [json_alone],
        "anthropic_messages": [[json_alone]],
        "responses": [response],
        "background": [response],
        "websocket": [response],
        "a2a jsonrpc": [(COMPLETED, '{ "sum": 3 }')],
        "a2a rest": [(COMPLETED, '{ "sum": 3 }')],
        "session": [('{ "sum": 3 }', None)],
    }


QUESTION = (
    'A call waits for approval:\n1. echo {"text": "a"}\nAnswer with one of: "approve", "reject", "reject: <reason>", '
    '"edit: {<all arguments as JSON>}", "respond: <the result>".'
)
WAITING: dict[str, tuple[str, str, list[str]]] = {
    "client_tool": ("paint", "", ["function_call"]),
    "approval": ("echo", QUESTION, ["mcp_approval_request"]),
    "answer": ("ask", "Which one?", []),
}
"""What a run waits for → the called tool, the question to the person, and the items of the calls that wait."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("structured", [False, True], ids=["text", "structured"])
@pytest.mark.parametrize("waits_for", WAITING)
def test_text_of_a_plan_whose_call_waits_is_commentary(waits_for: str, structured: bool) -> None:
    name, question, items = WAITING[waits_for]
    replies: list[AIMessage | str] = [asks(("c1", name, {"text": "a"}), content="Let me check."), *SPARE]
    case = Case("native", "auto", True, structured, replies, None, paints=waits_for == "client_tool")
    streamed, whole = asyncio.run(both(case))

    # With a response format, the text is no content.
    before = "" if structured else "Let me check."
    text = "\n\n".join(filter(None, [before, question]))
    if waits_for == "answer" and before:
        blocks = [before, question]
        messages = [("message", "commentary", [f"{before}\n\n"]), ("message", "final_answer", [question])]
    else:
        blocks = [text] if text else []
        phase = "final_answer" if waits_for == "answer" else "commentary"
        messages = [("message", phase, [block]) for block in blocks]
    response = ([*messages, *((kind, None, []) for kind in items)], text)
    task = (COMPLETED, '{"sum": 3}') if waits_for == "client_tool" else (INPUT_REQUIRED, "")
    expected = {
        "openai_chat": text,
        "anthropic_messages": blocks,
        **dict.fromkeys(["responses", "background", "websocket"], response),
        # These requests have no tools of the client: its name is unknown.
        **dict.fromkeys(["a2a jsonrpc", "a2a rest"], task),
        "session": ("", waits_for),
    }
    first = [{door: answers[0] for door, answers in found.items()} for found in (streamed, whole)]
    assert first == [expected, expected]
