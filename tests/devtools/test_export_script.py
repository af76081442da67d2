"""The literals of exported tests: Python reads back the text that was recorded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.devtools.export_script import Constants

_LONG = "A line that is long enough.\n" * 20


def read_back(value: str) -> str:
    """Write a text as a constant, and let Python read it."""
    constants, scope = Constants(), dict[str, Any]()
    constants.of(value, "TEXT")
    exec("\n".join(constants.lines()), scope)
    return str(scope["TEXT"])


@pytest.mark.parametrize(
    "end", ['"""', '""', '"', '\\"""', '\\\\"', "\\", '""""', "'''", '"""\n', '"\n"', '\r"', "\x00"]
)
def test_a_text_with_this_end_is_read_back(end: str) -> None:
    assert read_back(_LONG + end) == _LONG + end


@given(st.text(st.sampled_from("a \\\"'\n\r\t\x00\u2028é{"), max_size=30))
def test_any_text_is_read_back(text: str) -> None:
    assert read_back(text + _LONG + text) == text + _LONG + text
