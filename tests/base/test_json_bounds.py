"""JSON text is counted piece by piece, as a parser would count it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_agent.base._internal.json_bounds import (
    JsonBounds,
    JsonBoundsError,
    JsonMeter,
    TooManyValuesError,
    count_values,
)

WIDE = JsonBounds(values=10**6, depth=10**6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


def _fed(text: bytes, size: int, bounds: JsonBounds) -> int:
    meter = JsonMeter(bounds)
    for at in range(0, len(text), size):
        meter.feed(text[at : at + size])
    return meter.values


def _empty(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else sum(map(_empty, inner)) + (not inner)


def _count(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + sum(map(_count, inner))


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@settings(max_examples=200)
@given(value=VALUES, size=st.integers(1, 50), ascii=st.booleans())
def test_pieces_of_any_size_are_counted_as_a_parser_counts(value: Any, size: int, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii).encode(errors="surrogatepass")

    # An empty list or object is counted for its place inside as well.
    found = _fed(text, size, WIDE)
    _fed(text, size, JsonBounds(found, _depth(value)))

    assert found == _count(value) + _empty(value)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (b"[1,2,3]", 4),
        (b'"[,[,{"', 1),
        (rb'["\\",[],"\",[\"",2]', 6),
        (rb'["\\\\\"",1]', 3),
        (b"[" * 5 + b"]" * 5, "nested more than 4 levels"),
        (b"[1,2,3,4,5,6,7,8,9,10]", "more than 10 JSON values"),
        (b"[" + b"9" * 100 + b",1]", 3),
        (b"[" + b"9" * 101 + b"]", "a number of more than 100 characters"),
        (b"[0." + b"1" * 50 + b"e" + b"1" * 60 + b"]", "a number of more than 100 characters"),
        (b'["' + b"9" * 200 + b'"]', 2),
        ("[1]".encode("utf-16"), "a NUL byte"),
        ("[1]".encode("utf-32"), "a NUL byte"),
        (b"]" * 20 + b"[" * 20, None),
    ],
)
def test_bounds_hold_at_every_border_between_pieces(text: bytes, outcome: int | str | None, size: int) -> None:
    found: int | str | None
    try:
        found = _fed(text, size, JsonBounds(values=10, depth=4))
    except JsonBoundsError as error:
        found = str(error)

    if outcome is None:  # no parser reads beyond the first bracket
        return
    assert found == outcome if isinstance(outcome, int) else isinstance(found, str) and outcome in found


def test_a_text_inside_a_request_is_counted() -> None:
    assert count_values('{"a": ["\ud800", 1]}', WIDE) == 4
    with pytest.raises(TooManyValuesError):
        count_values("[" + "1," * 70_000 + "1]", JsonBounds(60_000, 10))
