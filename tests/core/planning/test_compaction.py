"""Compaction of a conversation too long for its model: omitted and kept messages, in an order providers accept."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from graph_agent.base.history_notes import NOTE_MARK
from graph_agent.core.planning.compaction import compact, compacted_view

SYSTEM = SystemMessage("Be brief.", id="system")
UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow])


def wave(name: str, *results: str) -> list[AnyMessage]:
    """A message that asks for calls, and their results."""
    calls: list[Any] = [
        {"id": f"{name}{n}", "name": "search", "args": {"q": f"{name} {n}"}} for n in range(len(results))
    ]
    answers = [
        ToolMessage(result, tool_call_id=call["id"], name="search", id=f"result-{call['id']}")
        for call, result in zip(calls, results, strict=True)
    ]
    return [AIMessage("", tool_calls=calls, id=f"wave-{name}"), *answers]


def human(text: str, id_: str) -> HumanMessage:
    return HumanMessage(text, id=id_)


def ids(messages: Sequence[AnyMessage]) -> list[str | None]:
    return ["note" if message.additional_kwargs.get(NOTE_MARK) else message.id for message in messages]


def test_old_waves_are_omitted_with_a_note() -> None:
    history = [
        human("Where is the harbour?", "u1"),
        *wave("a", "north " * 300, "south " * 300),
        *wave("b", "east " * 100),
        *wave("c", "west " * 100),
    ]

    made = compact([SYSTEM, *history])

    assert made is not None
    assert (made.kept_from, ids(made.messages), made.messages[1].text.splitlines()[1:]) == (
        "wave-b",
        ["system", "note", "u1", "wave-b", "result-b0", "wave-c", "result-c0"],
        [
            f'- You called search({{"q": "a 0"}}); success: {"north " * 26}nort…',
            f'- You called search({{"q": "a 1"}}); success: {"south " * 26}sout…]',
        ],
    )


def test_earlier_questions_and_answers_are_shortened_in_the_note() -> None:
    history: list[AnyMessage] = [
        human("What is the weather? " + "Please. " * 300, "u1"),
        AIMessage("Fair, " * 900, id="a1"),
        human("And tomorrow?", "u2"),
    ]

    made = compact([SYSTEM, *history])

    assert made is not None
    lines = [line[:30] for line in made.messages[1].text.splitlines()[1:]]
    assert (ids(made.messages), lines) == (
        ["system", "note", "u2"],
        ["- The user said: What is the w", "- You said: Fair, Fair, Fair, "],
    )


def test_steering_keeps_the_question_it_belongs_to() -> None:
    history = [human("Find it.", "u1"), *wave("a", "x" * 9_000), human("In red.", "u2"), *wave("b", "y" * 90)]

    made = compact(history)

    assert made is not None
    assert ids(made.messages) == ["note", "u1", "u2", "wave-b", "result-b0"]


def test_the_window_bounds_what_is_kept() -> None:
    history = [human("Go.", "u1"), *itertools.chain.from_iterable(wave(str(n), "z" * 4_000) for n in range(40))]

    made = compact(history, window=8_000)

    assert made is not None
    assert 3_000 < count_tokens_approximately(made.messages) <= 6_000


def test_nothing_can_be_left_out_of_the_newest_input_and_its_only_wave() -> None:
    assert [
        compact([SYSTEM, human("x" * 100_000, "u1")]),
        compact([SYSTEM, human("Go.", "u1"), *wave("a", "x" * 100_000)]),
        compact([SYSTEM]),
        compact([]),
    ] == [None, None, None, None]


def test_a_mark_that_is_not_in_the_history_changes_nothing() -> None:
    history: list[AnyMessage] = [human("Go.", "u1"), *wave("a", "x")]

    assert compacted_view(history, "gone") == history


@st.composite
def conversations(draw: st.DrawFn) -> list[AnyMessage]:
    """A conversation as the loop stores it: inputs, waves with all their results, steering, answers."""
    texts = st.integers(0, 3_000).map(lambda size: "word " * (size // 5))
    messages: list[AnyMessage] = [SYSTEM] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 5))):
        messages.append(human(draw(texts), f"u{turn}"))
        for step in range(draw(st.integers(0, 4))):
            messages += wave(f"{turn}.{step}.", *draw(st.lists(texts, min_size=1, max_size=4)))
            if draw(st.integers(0, 5)) == 0:
                messages.append(human(draw(texts), f"s{turn}.{step}"))
        if draw(st.booleans()):
            messages.append(AIMessage(draw(texts), id=f"a{turn}"))
    return messages


def orphans(messages: Sequence[AnyMessage]) -> list[str]:
    """Calls without a result directly after them, and results without a call."""
    open_: list[str] = []
    wrong: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id in open_:
                open_.remove(message.tool_call_id)
            else:
                wrong.append(message.tool_call_id)
            continue
        wrong += open_
        open_ = [call["id"] or "" for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return wrong + open_


@UNHURRIED
@given(conversations(), st.none() | st.integers(100, 5_000))
def test_any_compaction_leaves_a_valid_conversation(messages: list[AnyMessage], window: int | None) -> None:
    made = compact(messages, window)

    if made is None:
        return
    shorter = made.messages
    inputs = [message for message in messages if isinstance(message, HumanMessage)]
    start = messages.index(next(message for message in messages if message.id == made.kept_from))
    assert {
        "orphans": orphans(shorter),
        "system": [message for message in shorter if isinstance(message, SystemMessage)],
        "begins": shorter[len(shorter) - len([m for m in shorter if m.type != "system"])].type,
        "notes": ids(shorter).count("note"),
        "input kept": inputs[-1] in shorter,
        "newest kept": shorter[-(len(messages) - start) :] == messages[start:],
        "in order": [m for m in messages if m in shorter] == [m for m in shorter if m in messages],
        "smaller": count_tokens_approximately(shorter) < count_tokens_approximately(messages),
        "again": compacted_view(shorter, made.kept_from) == shorter,
    } == {
        "orphans": [],
        "system": [message for message in messages if isinstance(message, SystemMessage)],
        "begins": "human",
        "notes": 1,
        "input kept": True,
        "newest kept": True,
        "in order": True,
        "smaller": True,
        "again": True,
    }


@UNHURRIED
@given(conversations(), conversations())
def test_the_view_lasts_while_the_conversation_grows(before: list[AnyMessage], after: list[AnyMessage]) -> None:
    made = compact(before)
    if made is None:
        return
    later = [
        message.model_copy(
            update={"id": f"later-{message.id}"}
            | ({"tool_call_id": f"later-{message.tool_call_id}"} if isinstance(message, ToolMessage) else {})
            | (
                {"tool_calls": [{**call, "id": f"later-{call['id']}"} for call in message.tool_calls]}
                if isinstance(message, AIMessage)
                else {}
            )
        )
        for message in after
        if not isinstance(message, SystemMessage)
    ]

    grown = compacted_view([*before, *later], made.kept_from)

    assert (orphans(grown), ids(grown).count("note"), grown[-len(later) :]) == ([], 1, later)
