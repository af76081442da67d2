"""Filters of streamed replies: a text that extends a shown reply is judged as the whole reply is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk

from graph_agent.models.stream_filters import (
    AnswerFilter,
    CallFilter,
    LeadingCallFilter,
    MarkupFilter,
    SentinelFilter,
    TextCallFilter,
    TurnFilter,
)
from graph_agent.models.stream_watch import StreamWatch, Visibility

PIECES = [
    *("It is", " 42", ".", " ", "\n", "\n\n", "f", "fun", "ctools", "functools[0]", "No", " more", " actions", "."),
    *(
        "no more actions",
        "- ",
        "_",
        "{",
        '{"name"',
        "[",
        "[a](b)",
        "[x(",
        "<",
        "<tool_call>",
        "`",
        "```",
        "```python\n",
    ),
    *("<|im_end|>", "<|im_start|>", "<tool_result ", "[Notice from", "[TOOL_CALLS]", "]", "]<]", '"', "User:"),
    *("~", "~~~", "<think>", "</think>", "\u25c1", "n", "\u00e9", "\t"),
]


class ByWhole:
    """A filter that judges the whole reply at each piece."""

    def __init__(self, inner: Visibility) -> None:
        self._inner = inner

    def part(self, text: str) -> tuple[int, int]:
        return self._inner.part(text)

    def extends(self, text: str) -> bool:
        return False


def shown(visibility: Callable[[], Visibility], pieces: list[str]) -> list[str]:
    """The text that is shown after each piece."""
    watch = StreamWatch(visibility)
    texts: list[str] = []
    for piece in pieces:
        watch.receive(AIMessageChunk(content=piece))
        texts.append(watch.text)
    return texts


def answer_in_text() -> Visibility:
    return TurnFilter(AnswerFilter())


@pytest.mark.parametrize(
    "filter_",
    [
        *(SentinelFilter, CallFilter, LeadingCallFilter, AnswerFilter),
        *(MarkupFilter, TextCallFilter, answer_in_text),
    ],
)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
@example(pieces=["It is", "\n", "No", " more", " actions", "."])
@example(pieces=["It is", " f", "un", "ctools[0]"])
@example(pieces=["It is", " ", "f", "ctools"])
def test_a_piece_alone_shows_as_much_as_the_whole_reply(filter_: Callable[[], Visibility], pieces: list[str]) -> None:
    assert shown(filter_, pieces) == shown(lambda: ByWhole(filter_()), pieces)
