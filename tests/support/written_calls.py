"""Calls as models write them in text, and the work of reading a text."""

from __future__ import annotations

import sys
from types import FrameType

from hypothesis import strategies as st

from graph_agent.calls import parse_tool_calls

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(st.text(), JSON, max_size=4)
TAGGED = [
    "<tool_call>{call}</tool_call>",
    "[TOOL_CALLS][{call}]",
    "[TOOL_CALLS]{name}[ARGS]{arguments}",
    "<|python_tag|>{call}<|eom_id|>",
    "<function={name}>{arguments}</function>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}"
    "<|tool_call_end|><|tool_calls_section_end|>",
    "<|tool_call|>[{call}]<|/tool_call|>",
    "functools[{call}]",
    "```tool_call\n{call}\n```",
    '{{"tool_calls": [{call}]}}',
]


def work_of(text: str) -> int:
    """Count the functions, of Python and of C, that reading ``text`` calls."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        parse_tool_calls(text, ["a"])
    finally:
        sys.setprofile(before)
    return calls
