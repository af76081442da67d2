"""Decoding of an answer in JSON while it is streamed."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.models.wire.answer_decoder import AnswerDecoder, answer_of_object, cut_at_stop


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at some places."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in pairwise(places)]


def decoded(decoder: AnswerDecoder, parts: list[str]) -> str:
    return "".join([*map(decoder, parts), decoder.rest()])


@given(
    answer=st.text(),
    cuts=st.lists(st.integers(0, 500), max_size=20),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_an_answer_in_any_pieces_is_decoded(answer: str, cuts: list[int], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps({"answer": answer}, ensure_ascii=ascii_only, indent=indent)
    decoder = AnswerDecoder()

    assert (decoded(decoder, pieces(text, cuts)), decoder.is_answer) == (answer.replace("\x00", "\ufffd"), True)


@given(
    text=st.sampled_from(
        ['{"tool_calls": [{"name": "a", "arguments": {}}]}', "Plain prose.", '{"ans', '{"answers": 1}']
    )
    | st.text().filter(lambda text: not text.lstrip().startswith("{")),
    cuts=st.lists(st.integers(0, 500), max_size=20),
)
def test_any_other_reply_is_unchanged(text: str, cuts: list[int]) -> None:
    decoder = AnswerDecoder()

    assert (decoded(decoder, pieces(text, cuts)), decoder.is_answer) == (text, False)


@given(
    answer=st.text("ab#\n", max_size=30),
    stop=st.lists(st.text("ab#\n", min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(0, 500), max_size=20),
)
def test_an_answer_ends_at_the_first_stop_sequence(answer: str, stop: list[str], cuts: list[int]) -> None:
    expected = cut_at_stop(answer, stop)

    by_schema = decoded(AnswerDecoder(stop), pieces(json.dumps({"answer": answer}), cuts))
    in_prose = decoded(AnswerDecoder(stop), pieces(f"a{answer}", cuts))

    assert (by_schema, in_prose) == (expected, cut_at_stop(f"a{answer}", stop))


@given(answer=st.text(), end=st.integers(0, 200))
def test_a_cut_off_answer_is_a_beginning_of_the_whole(answer: str, end: int) -> None:
    text = json.dumps({"answer": answer})
    decoder = AnswerDecoder()

    begun = decoded(decoder, [text[:end]])

    assert not decoder.is_answer or answer.replace("\x00", "\ufffd").startswith(begun)


@pytest.mark.parametrize("digits", ["12g4", "1_23", "+123", " 123"])
def test_an_escape_without_a_hexadecimal_number_is_its_digits(digits: str) -> None:
    decoder = AnswerDecoder()

    assert decoded(decoder, [f'{{"answer": "a\\u{digits}b"}}']) == f"a{digits}b"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"answer": "Hello."}', "Hello."),
        ('```json\n{"answer": "Hello."}\n```', "Hello."),
        ('{"answer": "Hello.", "more": 1}', None),
        ('{"answer": 1}', None),
        ('{"answer": "Hello."} And more.', None),
        ("Hello.", None),
    ],
)
def test_the_answer_of_a_whole_object(text: str, answer: str | None) -> None:
    assert answer_of_object(text) == answer
