"""The attack oracle reports each kind of violation, and none for a valid record."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from tests.attack.oracle import Record, Violation, answer_to, call_id, violations


def history(text: str = "pay 1", *, result: str = "charged for pay 1") -> list[BaseMessage]:
    call = {"id": call_id(text), "name": "charge", "args": {"text": text}}
    return [
        HumanMessage(text),
        AIMessage("", tool_calls=[call]),
        ToolMessage(result, tool_call_id=call["id"]),
        AIMessage(answer_to(text)),
    ]


def found(messages: list[BaseMessage], effects: int = 1, answer: str = answer_to("pay 1")) -> list[Violation]:
    record = Record()
    record.note("s", "pay 1", {"answer": answer})
    turns = [("s", "pay 1")]
    return violations(record, Counter({("s", "pay 1"): effects} if effects else {}), {"s": messages}, turns)


def test_a_sound_record_has_no_violations() -> None:
    assert found(history()) == []


NOT_RUN = "Not run: the session was stopped."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"messages": history(), "effects": 2}, ("repeated", "('s', 'pay 1'): took effect 2 times")),
        (
            {"messages": history(), "answer": "answer to pay 2"},
            ("invented", "('s', 'pay 1'): acknowledged with 'answer to pay 2'"),
        ),
        ({"messages": []}, ("lost", "('s', 'pay 1'): is not in the history")),
        (
            {"messages": history()[:-1]},
            ("lost", "('s', 'pay 1'): was acknowledged, and its answer is not in the history"),
        ),
        ({"messages": [*history(), HumanMessage("pay 1")]}, ("repeated", "('s', 'pay 1'): in the history 2 times")),
        (
            {"messages": history(result=NOT_RUN)},
            ("lost", f"('s', 'pay 1'): took effect, and its result is {NOT_RUN!r}"),
        ),
        (
            {"messages": history(), "effects": 0},
            ("invented", "('s', 'pay 1'): had no effect, and its result is 'charged for pay 1'"),
        ),
        ({"messages": [*history()[:2], history()[-1]]}, ("lost", "s: call-pay-1 has no result")),
    ],
    ids=["repeated", "foreign answer", "lost turn", "lost answer", "turn twice", "not run", "no effect", "orphan"],
)
def test_each_violation_is_found(given: dict[str, Any], expected: tuple[str, str]) -> None:
    assert found(**given) == [expected]
